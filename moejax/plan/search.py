"""Search for the best meshes, remat policies and microbatches on a topology, and for remedies if a training run does
not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.kernels.saved_names import SAVED_NAMES
from moejax.laws.memory import named_activations
from moejax.model.runtime import REMAT_POLICIES
from moejax.plan.analytic_estimate import analytic_estimate, divisors, step_memory
from moejax.plan.plan import Plan, abstract_mesh, mesh_sizes
from moejax.plan.topology import CPU, Topology, slices
from moejax.say import StageCallback, say
from moejax.sharding import MESH_AXES
from moejax.train.mesh import check_fits
from moejax.train.training import Training
from moejax.wording import told

ROOM = 0.85
"""Share of a chip's memory up to which an estimated candidate is compiled (``summary.ESTIMATED``)."""
DOUBT = 1.3
"""Like ``ROOM``, for remedies. It is above 1, so that each kind of remedy is tried even if no estimate fits."""
MOST_PARTS = 64
REMEDY_TRIES = 8
"""Maximum number of candidates that are compiled as remedies."""

Make = Callable[[Training, Topology], Plan]


@dataclass(frozen=True)
class PlanCandidate:
    """A training run with one choice of mesh, remat policy and microbatches, and its estimates."""

    training: Training
    topology: Topology
    seconds: float
    """Estimated seconds of a step."""
    seconds_without_overlap: float
    """Estimated seconds of a step if communication overlapped with nothing."""
    memory_bytes: float
    """Estimated bytes on a chip."""

    @property
    def words(self) -> str:
        """The choice as options of the command line."""
        return ways(self.training, self.topology)


def ways(training: Training, topology: Topology) -> str:
    """Return the mesh, remat policy and microbatches of a training run as options of the command line."""
    sizes = _sizes_joined(training, topology)
    mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"
    return f"--mesh {mesh} --remat {training.recipe.runtime.remat} --microbatches {training.recipe.microbatches}"


def _sizes_joined(training: Training, topology: Topology) -> dict[str, int]:
    """Return the mesh axis sizes within each of the parts that ``dcn_data`` connects."""
    sizes = training.recipe.mesh.slice_sizes(topology.devices, topology.slices)
    return dict(zip(MESH_AXES, sizes, strict=True))


def candidates(training: Training, topology: Topology, room: float = ROOM) -> list[PlanCandidate]:
    """Return all candidates that fit in ``room``, a share of a chip's memory, sorted by estimated step time."""
    limit = room * _limit(topology)
    fitting = [_candidate(one, topology) for one, memory in _all(training, topology) if memory <= limit]
    return sorted(fitting, key=lambda one: (one.seconds, one.seconds_without_overlap, one.memory_bytes))


def ranked(training: Training, topology: Topology) -> list[PlanCandidate]:
    """Return the configuration's own choice, then all other candidates that fit, sorted by estimated step time."""
    own = _candidate(training, topology)
    return [own, *(one for one in candidates(training, topology) if one.words != own.words)]


def with_mesh_that_fits(training: Training, topology: Topology) -> Training:
    """Return the training run, with the mesh of the best candidate if its own mesh does not fit, which is reported.

    Raises:
      UserError: no mesh fits.
    """
    try:
        training.check_mesh(abstract_mesh(mesh_sizes(training, topology)))
    except UserError as error:
        least = smallest(training, topology)
        if least is None:
            raise
        best = next(iter(candidates(training, topology)), least)
        say(f"{told(error)} The search begins with {best.words}.")
        return best.training
    return training


def smallest(training: Training, topology: Topology) -> PlanCandidate | None:
    """Return the candidate with the least estimated memory; None if no mesh fits."""
    least = min(_all(training, topology), key=lambda one: one[1], default=None)
    return None if least is None else _candidate(least[0], topology)


def search(
    training: Training, topology: Topology, make: Make, *, compiled: int = 6, progress: StageCallback | None = None
) -> list[Plan]:
    """Compile the most promising candidates and return their plans, sorted by whether they fit and then by
    ``Plan.seconds``.

    The roofline of ``analytic_estimate`` ranks the candidates. The configuration's own choice is always included.
    """
    chosen = ranked(training, topology)[:compiled]
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
    tries: int = REMEDY_TRIES,
    progress: StageCallback | None = None,
) -> list[tuple[str, Plan]]:
    """Return changes that make a training run fit, as options with the compiled plans.

    Only candidates with a smaller memory estimate than ``refused`` are tried. Changes of one setting come first (remat,
    microbatches, mesh), then changes of all three, then more chips.
    """
    if tries < 1:
        return []
    own = _candidate(refused, topology)
    every = [one for one in candidates(refused, topology, DOUBT) if one.memory_bytes < own.memory_bytes]

    def changed(one: PlanCandidate) -> set[str]:
        ours, theirs = own.training.recipe, one.training.recipe
        is_changed = {
            "mesh": theirs.mesh != ours.mesh,
            "remat": theirs.runtime.remat != ours.runtime.remat,
            "parts": theirs.microbatches != ours.microbatches,
        }
        return {part for part in is_changed if is_changed[part]}

    roomy = sorted(every, key=lambda one: (one.memory_bytes > _limit(topology), one.seconds))
    of_one_thing = [[one for one in roomy if changed(one) <= {part}] for part in ("remat", "parts", "mesh")]
    kinds = [*of_one_thing, roomy, list(_more_chips(refused, topology))]
    fitting: list[tuple[str, Plan]] = []
    tried: set[str] = set()
    for group in [*kinds, *kinds]:
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


def _all(training: Training, topology: Topology) -> Iterator[tuple[Training, float]]:
    """Yield all candidates with their estimated bytes on a chip."""
    mesh, policies = training.recipe.mesh, _remat_policies(training)
    for sizes in _meshes(topology.devices // mesh.joined(topology.devices, topology.slices)):
        shape = replace(mesh, **sizes)
        for parts in divisors(training.recipe.batch_sequences):
            if parts > MOST_PARTS:
                break
            one = replace(training, recipe=replace(training.recipe, mesh=shape, microbatches=parts))
            if not _divides(one, topology):
                continue
            for remat in policies:
                runtime = replace(one.recipe.runtime, remat=remat)
                candidate = replace(one, recipe=replace(one.recipe, runtime=runtime))
                memory = step_memory(candidate, mesh_sizes(candidate, topology), topology.platform)
                yield candidate, memory.total


def _remat_policies(training: Training) -> list[str]:
    """Return the keys of ``REMAT_POLICIES``, the named policies of the architecture, and the configuration's own
    policy.
    """
    recipe = training.recipe
    named = named_policies(training.architecture, recipe.data.sequence_length)
    # The order of names does not matter, so the own policy replaces an equal one.
    policies = {frozenset(one.split("+")): one for one in (*REMAT_POLICIES, *named, recipe.runtime.remat)}
    return list(policies.values())


def named_policies(architecture: Architecture, sequence_length: int) -> list[str]:
    """Return remat policies that save one, two, … of the architecture's named activations.

    Each policy adds the activation that saves the most recomputation per byte, and of equal ones the largest. Other
    subsets recompute more in about the same memory, so they are left out.
    """
    named = {name: one for name, one in named_activations(architecture, sequence_length).items() if one.flops}

    def worth(name: str) -> tuple[float, float]:
        one = named[name]
        return float(one.flops) / float(one.values + 2 * one.sums), float(one.flops)

    order = sorted(named, key=worth, reverse=True)
    return ["+".join(name for name in SAVED_NAMES if name in order[:count]) for count in range(1, len(order) + 1)]


def _meshes(devices: int) -> Iterator[dict[str, int]]:
    for tensor in divisors(devices):
        for expert in divisors(devices // tensor):
            for fsdp in divisors(devices // tensor // expert):
                data = devices // tensor // expert // fsdp
                yield {"data": data, "fsdp": fsdp, "expert": expert, "tensor": tensor}


def _divides(training: Training, topology: Topology) -> bool:
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
        return PlanCandidate(whole, topology, parts, parts, estimate.memory.total)
    times = estimate.roofline.step_seconds, estimate.roofline.step_seconds_without_overlap
    return PlanCandidate(whole, topology, *times, estimate.memory.total)
