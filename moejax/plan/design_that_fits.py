"""Design the best model whose training fits on a topology, by the estimates of its meshes, remat policies and
microbatches.

The memory constraint of a design counts parameters, gradients and optimizer state spread over all chips. A step also
holds activations and gathered weights, and many microbatches save memory but gather the weights again and again. The
search therefore lowers the constraint until an estimated candidate fits and is fast enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np

from moejax.config import build
from moejax.design.build import OnTopology
from moejax.design.constraint import Constraint
from moejax.design.decide import DesignResult
from moejax.errors import UserError
from moejax.plan.search import ROOM, PlanCandidate, candidates
from moejax.plan.step_time import mfu_of_step
from moejax.plan.topology import Topology
from moejax.quantities import format_bytes
from moejax.say import StageCallback
from moejax.train.training import Training, choose_hyperparameters
from moejax.wording import argument, told

TRIES = 20
STEP = 0.8
"""Factor of the state if a design does not fit, or is too slow."""
SCANNED = 5
"""Number of larger states that are tried after the first that fits. Feasibility depends on divisors of the sizes, so a
larger design may fit although a smaller one does not."""


def design_that_fits(
    design: Callable[[Constraint], DesignResult], topology: Topology, progress: StageCallback | None = None
) -> DesignResult:
    """Return the best design that fits, with a candidate for its training run.

    A design fits if a candidate's estimated memory is at most ``ROOM`` of a device's, and if it reaches the assumed MFU
    by its roofline even if communication overlaps with nothing.

    Args:
      design: returns the design under a constraint on ``memory_bytes``, the state on all chips.
      progress: called with the step, its number and the largest number of steps.

    Raises:
      UserError: the topology's memory is unknown, no model was built, or none fits.
    """
    room = ROOM * topology.known_chip.device.memory_bytes * topology.devices
    too_slow = ""
    fastest = 0.0
    reasons: list[str] = []

    def tried(limit: float, number: int) -> DesignResult | None:
        nonlocal too_slow, fastest
        if progress:
            progress(
                f"state of at most {format_bytes(limit / topology.devices, 3)} per device", number, TRIES + SCANNED
            )
        try:
            decision = design(Constraint(name="memory_bytes", high=limit))
        except UserError as error:
            reasons.append(told(error))
            return None
        if decision.built is None:
            reasons.append(decision.not_built)
            return None
        training, batch = _training(decision, topology)
        every = candidates(training, topology)
        if not every:
            reasons.append(f"No design fits on {topology.name}; use more or larger chips, or a smaller budget.")
            return None
        on = _on(topology, min(every, key=lambda one: one.seconds_without_overlap), batch)
        fastest = max(fastest, on.roofline_mfu)
        mfu = decision.optimum.problem.assumptions.mfu
        if on.roofline_mfu < mfu:
            too_slow = (
                f"No design reaches the assumed MFU of {mfu:.0%} on {topology.name}; the highest by the roofline, "
                f"without overlap of communication, is {fastest:.1%}. Assume less "
                f"({argument('mfu', str(math.floor(100 * fastest) / 100))}), or give fewer or other chips."
            )
            return None
        return replace(decision, on_topology=on)

    limits = [room * STEP**number for number in range(TRIES)]
    for number, limit in enumerate(limits):
        if found := tried(limit, number):
            break
    else:
        # Under the largest limit, a refusal is not due to the limit.
        raise UserError(too_slow or reasons[0])
    if number:
        larger = np.geomspace(limit, limits[number - 1], SCANNED + 2)[1:-1]
        scanned = [tried(float(one), number + 1 + i) for i, one in enumerate(larger)]
        found = min([found, *filter(None, scanned)], key=_goal)
    return found


def _goal(decision: DesignResult) -> float:
    assert decision.built is not None
    assert decision.shape is not None
    return decision.built.goal(decision.shape.problem)


def _training(decision: DesignResult, topology: Topology) -> tuple[Training, int | None]:
    """Return the training run, and its tokens per batch if the automatic batch does not divide by the devices."""
    settings = decision.training()
    training = choose_hyperparameters(build(Training, settings, "training")).training
    sequences, length = training.recipe.batch_sequences, training.recipe.data.sequence_length
    if sequences % topology.devices == 0 or topology.devices > sequences:
        return training, None
    batch = max(1, round(sequences / topology.devices)) * topology.devices * length
    settings["recipe"]["batch_tokens"] = batch
    return choose_hyperparameters(build(Training, settings, "training")).training, batch


def _on(topology: Topology, best: PlanCandidate, batch: int | None) -> OnTopology:
    recipe = best.training.recipe
    return OnTopology(
        topology=topology.name,
        chips=topology.chips,
        choice=best.words,
        mesh=asdict(recipe.mesh),
        remat=recipe.runtime.remat,
        microbatches=recipe.microbatches,
        batch_tokens=batch,
        memory_bytes=best.memory_bytes,
        device_memory_bytes=topology.known_chip.device.memory_bytes,
        roofline_mfu=mfu_of_step(best.training, topology, best.seconds_without_overlap),
    )
