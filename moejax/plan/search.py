"""The best meshes, remat policies and microbatches for a training on a topology, and remedies for what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from moejax.model.runtime import REMAT_POLICIES
from moejax.plan.analytic_estimate import analytic_estimate, divisors
from moejax.plan.memory import abstract_mesh
from moejax.plan.plan import Plan, mesh_sizes
from moejax.plan.topology import CPU, Topology, slices
from moejax.progress import StageCallback
from moejax.sharding import MESH_AXES
from moejax.train.mesh import check_fits
from moejax.train.training import Training

ROOM = 0.85
"""Share of a chip's memory that an estimate may reach and still be compiled: for six plans for TPUs, XLA needed 0.9 to
1.8 times as much."""
DOUBT = 1.3
"""The same for a remedy, of which some of every kind are tried even if they are estimated not to fit."""
MOST_PARTS = 64

Make = Callable[[Training, Topology], Plan]


@dataclass(frozen=True)
class PlanCandidate:
    """A way to run a training."""

    training: Training
    topology: Topology
    seconds: float
    """Estimated seconds of a step."""
    seconds_without_overlap: float
    """If nothing on the links overlapped with anything."""
    memory_bytes: float
    """Estimated bytes on a chip."""

    @property
    def words(self) -> str:
        """What is chosen, as the command line takes it."""
        return ways(self.training, self.topology)


def ways(training: Training, topology: Topology) -> str:
    """How a training is run: its mesh, remat policy and microbatches."""
    sizes = _sizes_joined(training, topology)
    mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"
    return f"--mesh {mesh} --remat {training.recipe.runtime.remat} --microbatches {training.recipe.microbatches}"


def _sizes_joined(training: Training, topology: Topology) -> dict[str, int]:
    """Sizes of the axes of what ``dcn_data`` joins, as a mesh is written."""
    sizes = training.recipe.mesh.slice_sizes(topology.devices, topology.slices)
    return dict(zip(MESH_AXES, sizes, strict=True))


def candidates(training: Training, topology: Topology, room: float = ROOM) -> list[PlanCandidate]:
    """All ways that the training can be split, by the time estimated for a step; ``room`` is the share of a chip's
    memory that they may take as estimated."""
    limit = room * _limit(topology)
    fitting = [one for one in _all(training, topology) if one.memory_bytes <= limit]
    return sorted(fitting, key=lambda one: (one.seconds, one.seconds_without_overlap, one.memory_bytes))


def search(
    training: Training, topology: Topology, make: Make, *, compiled: int = 6, progress: StageCallback | None = None
) -> list[Plan]:
    """The plans of the most promising ways, each compiled; those that fit first, the fastest first (``Plan.seconds``).

    Which are promising says the roofline of ``analytic_estimate``. The configuration's own way is among them.
    """
    own = _candidate(training, topology)
    best = [one for one in candidates(training, topology) if one.words != own.words]
    chosen = [own, *best[: compiled - 1]]
    plans = []
    for number, one in enumerate(chosen):
        if progress:
            progress(f"compiling {one.words}", number, len(chosen))
        plans.append(make(one.training, one.topology))
    return sorted(plans, key=lambda plan: (not plan.fits, plan.seconds))


def remedies(
    refused: Training,
    topology: Topology,
    make: Make,
    *,
    wanted: int = 3,
    tries: int = 8,
    progress: StageCallback | None = None,
) -> list[tuple[str, Plan]]:
    """What makes a training fit that does not, found by trying: words, and the plan that it gives.

    Only what is estimated to need less memory than the refused is tried. First what changes one thing: remat,
    microbatches, the mesh; then the mesh with both; then more chips.
    """
    own = _candidate(refused, topology)
    every = [one for one in candidates(refused, topology, DOUBT) if one.memory_bytes < own.memory_bytes]
    recipe = refused.recipe

    def same(one: PlanCandidate, *parts: str) -> bool:
        other = one.training.recipe
        return all(
            {
                "mesh": other.mesh == own.training.recipe.mesh,
                "remat": other.runtime.remat == recipe.runtime.remat,
                "parts": other.microbatches == recipe.microbatches,
            }[part]
            for part in parts
        )

    roomy = sorted(every, key=lambda one: (one.memory_bytes > _limit(topology), one.seconds))
    kinds = [
        ("another remat policy", [one for one in roomy if same(one, "mesh", "parts")]),
        ("more microbatches", [one for one in roomy if same(one, "mesh", "remat")]),
        ("another mesh", [one for one in roomy if same(one, "remat", "parts")]),
        ("all three", roomy),
        ("more chips", list(_more_chips(refused, topology))),
    ]
    fitting: list[tuple[str, Plan]] = []
    tried: set[str] = set()
    for _, group in [*kinds, *kinds]:
        for one in group:
            words = one.words if one.topology == topology else f"--topology {one.topology.name} {one.words}"
            if words in tried:
                continue
            if len(fitting) == wanted or len(tried) == tries:
                return fitting
            if progress:
                progress(f"trying {words}", len(tried), tries)
            tried.add(words)
            plan = make(one.training, one.topology)
            if plan.fits:
                fitting.append((words, plan))
            break
    return fitting


def _limit(topology: Topology) -> float:
    return float("inf") if topology.device is None else topology.device.memory_bytes


def _more_chips(training: Training, topology: Topology) -> Iterator[PlanCandidate]:
    if topology.chip_name == CPU:
        return
    for shape in slices(topology.chip_name):
        larger = replace(topology, shape=shape)
        if topology.devices < larger.devices <= 8 * topology.devices:
            yield from candidates(training, larger)[:1]


def _all(training: Training, topology: Topology) -> Iterator[PlanCandidate]:
    mesh = training.recipe.mesh
    for sizes in _meshes(topology.devices // mesh.joined(topology.devices, topology.slices)):
        shape = replace(mesh, **sizes)
        for parts in divisors(training.recipe.batch_sequences):
            if parts > MOST_PARTS:
                break
            one = replace(training, recipe=replace(training.recipe, mesh=shape, microbatches=parts))
            if not _divides(one, topology):
                continue
            for remat in dict.fromkeys((*REMAT_POLICIES, one.recipe.runtime.remat)):
                runtime = replace(one.recipe.runtime, remat=remat)
                yield _candidate(replace(one, recipe=replace(one.recipe, runtime=runtime)), topology)


def _meshes(devices: int) -> Iterator[dict[str, int]]:
    for tensor in divisors(devices):
        for expert in divisors(devices // tensor):
            for fsdp in divisors(devices // tensor // expert):
                data = devices // tensor // expert // fsdp
                yield {"data": data, "fsdp": fsdp, "expert": expert, "tensor": tensor}


def _divides(training: Training, topology: Topology) -> bool:
    """Whether every axis of the mesh has what it splits."""
    recipe, a, mesh = training.recipe, training.architecture, training.recipe.mesh
    if not a.is_moe and mesh.expert > 1:
        return False
    heads = (a.num_heads, a.num_kv_heads, a.dense_hidden or mesh.tensor, a.expert_hidden or mesh.tensor)
    if any(size % mesh.tensor for size in heads):
        return False
    try:
        sizes = abstract_mesh(mesh_sizes(training, topology))
        check_fits(a, recipe.batch_sequences, recipe.microbatches, sizes)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def _candidate(training: Training, topology: Topology) -> PlanCandidate:
    recipe = training.recipe
    mesh = replace(recipe.mesh, **_sizes_joined(training, topology))
    whole = replace(training, recipe=replace(recipe, mesh=mesh))
    estimate = analytic_estimate(whole, topology)
    if estimate.roofline is None:
        parts = float(recipe.microbatches)
        return PlanCandidate(whole, topology, parts, parts, estimate.memory_bytes)
    times = estimate.roofline.step_seconds, estimate.roofline.step_seconds_without_overlap
    return PlanCandidate(whole, topology, *times, estimate.memory_bytes)
