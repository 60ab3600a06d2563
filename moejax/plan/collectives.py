"""Read the collectives of a compiled program from its text, in terms of the mesh axes.

Devices are numbered in the order of the mesh.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from moejax.plan.program_text import Instruction, instructions
from moejax.sharding import DCN_DATA

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

Groups = tuple[tuple[int, ...], ...]
"""Device numbers of each group; all groups communicate at the same time."""

Sizes = tuple[tuple[str, int], ...]
"""Names and sizes of the axes of a mesh."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective instruction, from the perspective of one device."""

    kind: str
    """XLA's name: all-reduce, all-gather, reduce-scatter, all-to-all, ragged-all-to-all, collective-permute."""
    axes: tuple[str, ...]
    """Mesh axes along which the members of a group differ; empty for groups of one device."""
    devices: int
    """Number of devices in one group."""
    bytes: int
    """Bytes of the whole array: the output of an all-gather and the input of a reduce-scatter. For a ragged all-to-all,
    the bytes of the rows of a balanced load.
    """
    times: int = 1
    """Number of executions per program run, if every branch is taken."""
    loops: int = 0
    """Number of loops around the instruction."""
    is_rare: bool = False
    """True if the instruction runs only in the rare case that a buffer overflows."""
    operation: str = ""
    """Name of the JAX operation: XLA's ``op_name``."""
    name: str = ""
    """Name of the instruction."""
    pairs: Groups = ()
    """Pairs of source and target devices of a permutation."""
    chain: int = 0
    """Chain number of a collective that XLA's TPU compiler fused into concurrent instructions; otherwise 0."""

    @property
    def bytes_sent(self) -> float:
        """Bytes that one device sends in one execution, with the algorithm of least traffic per link (rings or
        pairs).
        """
        return self.bytes * sent_share(self.kind, self.devices)


def sent_share(kind: str, devices: int) -> float:
    """Return the bytes that each device sends in a collective, as a multiple of the whole array's bytes."""
    others = (devices - 1) / devices
    return {"all-reduce": 2 * others, "collective-permute": 1.0}.get(kind, others)


def collectives(program: str, mesh: Mapping[str, int], slices: int = 1) -> list[Collective]:
    """Return the collectives of an optimized program, ``compiled.as_text()``, in textual order.

    ``mesh`` gives the sizes of the axes within a slice in order, as ``Mesh.shape`` does. Collectives within a single
    device are omitted. With several slices, XLA compiles one program per slice; its transfers between slices are
    returned as collectives along ``dcn_data``.

    Raises:
      ValueError: the text is not an optimized program, or has an unknown form.
    """
    sizes, sent, fusions = tuple(mesh.items()), [], {}
    for run in instructions(program):
        if run.opcode == "fusion":
            fusions[run.name] = run.rest
        if match := _COLLECTIVE.match(run.opcode):
            kind = "reduce-scatter" if _IS_SCATTER.search(fusions.get(run.fusion, "")) else match["kind"]
            sent.append(_collective(run, match, sizes, kind))
    sent += [
        _between_slices(run, between["kind"], slices)
        for run in instructions(program)
        if run.opcode == "send" and (between := _BETWEEN_SLICES.search(run.rest))
    ]
    return _once_each(collective for collective in sent if collective.devices > 1)


_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(?P<kind>\w+)"')


def _between_slices(one: Instruction, kind: str, slices: int) -> Collective:
    kind, sent = kind.lower().replace("_", "-"), bytes_of_arrays(one.type)[0]
    return Collective(
        kind=kind,
        axes=(DCN_DATA,),
        devices=slices,
        bytes=sent * (slices if kind == "all-gather" else 1),
        times=one.times,
        loops=one.loops,
        is_rare=one.is_rare,
    )


def _once_each(collectives: Iterable[Collective]) -> list[Collective]:
    """Merge the parts of each chained collective: keep only the part that runs least often."""
    chains: dict[int, Collective] = {}
    rest = []
    for collective in collectives:
        before = chains.get(collective.chain)
        if not collective.chain:
            rest.append(collective)
        elif before is None or collective.times < before.times:
            chains[collective.chain] = collective
    return [*rest, *chains.values()]


_COLLECTIVE = re.compile(rf"(?P<kind>{'|'.join(_KINDS)})(?P<starts>-start)?$")
_IS_SCATTER = re.compile(r'"emitter":"\w*AllReduceScatterFusion"')
"""Signature of the TPU compiler's own reduce-scatter kernel: a fusion of an all-reduce of the whole array and a slice.
Its emitter shows that it runs as a reduce-scatter, so no device holds the whole sum (libtpu 0.0.42.1).
"""
_OPERATION = re.compile(r'op_name="(?P<name>[^"]*)"')


def _collective(one: Instruction, match: re.Match[str], mesh: Sizes, kind: str) -> Collective:
    sizes, rest = bytes_of_arrays(one.type), one.rest
    if not one.times_known:
        raise ValueError(f"The program does not state the trip count of a loop with a collective ({kind}).")
    if match["starts"] and kind == "collective-permute":
        sizes = sizes[1:2]
    elif match["starts"] and kind != "all-reduce":
        # The inputs come first.
        sizes = sizes[len(sizes) // 2 :]
    if kind == "ragged-all-to-all":
        # One operand is a buffer, from which only the filled rows are sent. The other operand holds a balanced load.
        sizes = [min([*sizes[:1], *(bytes_ for type_ in one.operands[:1] for bytes_ in bytes_of_arrays(type_))])]
    pairs = _pairs(rest) if kind == "collective-permute" else ()
    groups = tuple(tuple(sorted(set(pair))) for pair in pairs)
    groups = groups or _groups(rest, math.prod(size for _, size in mesh))
    devices = max(map(len, groups))
    operation = _OPERATION.search(rest)
    return Collective(
        kind=kind,
        axes=_axes(groups, mesh),
        devices=devices,
        bytes=sum(sizes) * (devices if match["kind"] == "reduce-scatter" else 1),
        times=one.times,
        loops=one.loops,
        is_rare=one.is_rare,
        operation=operation["name"] if operation else "",
        name=one.name,
        pairs=pairs,
        chain=_chain(rest),
    )


def _chain(rest: str) -> int:
    channel = re.search(r"channel_id=(\d+)", rest)
    return int(channel[1]) if channel and "chain_id=" in rest else 0


_ARRAY = re.compile(r"(?P<type>[a-z]+(?P<bits>\d*)\w*)\[(?P<shape>[\d,<=]*)\]")


def bytes_of_arrays(type_: str) -> list[int]:
    """Return the bytes of each array of an HLO type, which may be a tuple."""
    every = []
    for array in _ARRAY.finditer(type_):
        bits = 8 if array["type"] == "pred" else int(array["bits"] or 0)
        sizes = [int(size.removeprefix("<=")) for size in array["shape"].split(",") if size]
        every.append(-(-bits * math.prod(sizes) // 8))
    return every


_LIST = re.compile(r"replica_groups=\{(?P<groups>\{[\d,{}]*\})?\}")
_IOTA = re.compile(r"replica_groups=(?P<shape>\[[\d,]+\])<=(?P<source>\[[\d,]+\](?:T\([\d,]+\))?)")
_MESH = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\((?P<ids>[^)]*\)?)\))? \{(?P<axes>[^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>[\d,{}]*)\}")


def _pairs(rest: str) -> Groups:
    pairs = _PAIRS.search(rest)
    if pairs is None:
        raise ValueError(f"The device pairs of a permutation cannot be parsed: {rest[:200]}")
    return _braced(pairs["pairs"])


def _groups(rest: str, devices: int) -> Groups:
    if match := _MESH.search(rest):
        return _along_named_axes(match["mesh"], match["ids"], match["axes"])
    if match := _IOTA.search(rest):
        return tuple(map(tuple, _iota(match["source"]).reshape(_numbers(match["shape"])).tolist()))
    if match := _LIST.search(rest):
        return _braced(match["groups"]) if match["groups"] else (tuple(range(devices)),)
    raise ValueError(f"The device groups of a collective cannot be parsed: {rest[:200]}")


def _braced(text: str) -> Groups:
    return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", text))


def _iota(text: str) -> np.ndarray:
    """Parse ``[4,2]T(1,0)``: the numbers from 0 in a shape, transposed and flattened."""
    shape, _, order = text.partition("T")
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return numbers.transpose(_numbers(order) or None).reshape(-1)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _along_named_axes(mesh: str, ids: str | None, axes: str) -> Groups:
    """Parse ``mesh['a'=4,'b'=2] {'b','a':(1)2}``: a compiler mesh and the axes, or parts of axes, that a group uses."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh)}
    # An axis is written in mixed radix; (before)part selects a run of its digits.
    taken = {
        (name, int(before or 1), int(before or 1) * int(part or sizes[name]))
        for name, before, part in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", axes)
    }
    dims, joined = [], []
    for name, size in sizes.items():
        cuts = sorted({1, size} | {cut for axis, *ends in taken if axis == name for cut in ends})
        for low, high in itertools.pairwise(cuts):
            joined.append(any(axis == name and begin <= low and high <= end for axis, begin, end in taken))
            dims.append(high // low)
    order = np.argsort(joined, kind="stable")
    members = math.prod(dim for dim, here in zip(dims, joined, strict=True) if here)
    numbers = _device_ids(ids, math.prod(dims)).reshape(dims).transpose(order).reshape(-1, members)
    return tuple(map(tuple, numbers.tolist()))


def _device_ids(ids: str | None, devices: int) -> np.ndarray:
    if ids is None:
        return np.arange(devices)
    return _iota(ids) if ids.startswith("[") else np.asarray(_numbers(ids))


@functools.lru_cache(maxsize=1024)
def _axes(groups: Groups, mesh: Sizes) -> tuple[str, ...]:
    shape = [size for _, size in mesh]
    differ = np.zeros(len(shape), bool)
    for group in groups:
        places = np.stack(np.unravel_index(np.asarray(group), shape))
        differ |= np.ptp(places, axis=1) > 0
    return tuple(name for (name, _), here in zip(mesh, differ, strict=True) if here)
