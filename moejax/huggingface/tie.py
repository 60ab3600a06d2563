"""What one of their tensors is among our stacked arrays: written once, followed in both directions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moejax.architecture import Architecture
from moejax.huggingface.rearrange import axes, rearrange
from moejax.weights.parameters import Parameter, parameters

JOINED = "*"


@dataclass(frozen=True)
class Tie:
    """One of their tensors, or one per layer, or one per layer and expert, and the arrays of ours that it holds."""

    theirs: str
    """Its name, with ``{layer}`` counted from the input and ``{expert}`` where there is one for each."""
    layout: str
    """Its axes by the logical names of ours, as ``(heads head_dim) embed``. ``*`` stands for the last axis of ours, or
    for those of several arrays joined."""
    ours: tuple[str, ...]
    """Names of the arrays, without that of the stack of layers."""
    alternating: int = 0
    """How many channels, at the end of the last axis, alternate there between what are halves of them here."""

    @property
    def by_expert(self) -> bool:
        """Whether it is about routed experts, each by itself or all in one."""
        return "{expert}" in self.theirs or "expert" in self.layout.split()


@dataclass(frozen=True)
class Pair:
    """A tensor of theirs, or one expert of it, and the slices of ours with the same numbers."""

    theirs: str
    index: tuple[int, ...]
    """Of the first axes of their tensor."""
    whole: tuple[int, ...]
    """Shape of their tensor."""
    ours: tuple[tuple[str, tuple[int, ...]], ...]
    """Names of the arrays, and where in their stacks: layer, expert."""
    layout: str
    """Their axes, arrow, ours."""
    sizes: Mapping[str, int]
    widths: tuple[int, ...]
    """Of the last axis of each of ours."""
    alternating: int

    def to_ours(self, theirs: np.ndarray) -> list[np.ndarray]:
        """The slices of ours from their tensor."""
        joined = rearrange(theirs, self.layout, self.sizes)
        if self.alternating:
            joined = joined[..., self._order()]
        return np.split(joined, np.cumsum(self.widths)[:-1], axis=-1)

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        """Their tensor from the slices of ours: the inverse."""
        joined = ours[0] if len(ours) == 1 else np.concatenate(ours, axis=-1)
        if self.alternating:
            joined = joined[..., np.argsort(self._order())]
        left, right = self.layout.split("->")
        return rearrange(joined, f"{right}->{left}", self.sizes)

    def _order(self) -> np.ndarray:
        """Of their channels, the order in which we have them: those that alternate as two halves."""
        channels = np.arange(sum(self.widths))
        start = len(channels) - self.alternating
        return np.concatenate([channels[:start], channels[start::2], channels[start + 1 :: 2]])


def pairs(architecture: Architecture, ties: Iterable[Tie]) -> list[Pair]:
    """Every tie of a family for every layer and expert of an architecture, in the order of its layers.

    Ties whose arrays an architecture has not are left out: those of biases, dense layers, shared experts.
    """
    known = parameters(architecture)
    found, counts = [], {"dense_layers": 0, "mixture_layers": 0}
    ties = list(ties)
    found += _of_layer(known, [tie for tie in ties if "{layer}" not in tie.theirs], "", (), -1)
    in_layers = [tie for tie in ties if "{layer}" in tie.theirs]
    for layer, experts in enumerate(architecture.has_experts):
        stack = "mixture_layers" if experts else "dense_layers"
        found += _of_layer(known, in_layers, f"{stack}.", (counts[stack],), layer)
        counts[stack] += 1
    return found


def _of_layer(
    known: Mapping[str, Parameter], ties: Iterable[Tie], stack: str, index: tuple[int, ...], layer: int
) -> Iterator[Pair]:
    for tie in ties:
        names = [stack + name for name in tie.ours]
        if all(name in known and ("expert" in known[name].axes) == tie.by_expert for name in names):
            yield from _pairs(known, tie, names, index, layer)


def _pairs(
    known: Mapping[str, Parameter], tie: Tie, names: list[str], index: tuple[int, ...], layer: int
) -> Iterator[Pair]:
    parameter = known[names[0]]
    inner = parameter.axes[len(index) + tie.by_expert :]
    sizes = dict(zip(parameter.axes, parameter.shape, strict=True))
    widths = tuple(known[name].shape[-1] for name in names)
    joined = tie.layout.replace(JOINED, inner[-1])
    sizes[inner[-1]] = sum(widths)
    groups = axes(joined)
    # Where all experts are one tensor of theirs, each is read and written by itself.
    together = groups[0] == ["expert"]
    whole = tuple(math.prod(sizes[name] for name in group) for group in groups)
    one = joined.split(maxsplit=1)[1] if together else joined
    for expert in range(sizes["expert"] if tie.by_expert else 1):
        at = (*index, expert) if tie.by_expert else index
        yield Pair(
            theirs=tie.theirs.format(layer=layer, expert=expert),
            index=(expert,) if together else (),
            whole=whole,
            ours=tuple((name, at) for name in names),
            layout=f"{one} -> {' '.join(inner)}",
            sizes=sizes,
            widths=widths,
            alternating=tie.alternating,
        )
