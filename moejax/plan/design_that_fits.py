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

from moejax.config import build
from moejax.design.build import OnTopology
from moejax.design.constraint import Constraint
from moejax.design.decide import DesignResult
from moejax.errors import UserError
from moejax.plan.search import ROOM, PlanCandidate, candidates, smallest
from moejax.plan.step_time import mfu_of_step
from moejax.plan.topology import Topology
from moejax.quantities import format_bytes
from moejax.say import StageCallback
from moejax.train.training import Training, choose_hyperparameters
from moejax.wording import argument

TRIES = 16
CLOSE = 0.95
"""Ratio of the largest state that fits to the smallest that does not, at which the search ends."""
STEP = 0.7
"""Factor of the state if a design fits but is too slow."""


def design_that_fits(
    design: Callable[[Constraint], DesignResult], topology: Topology, progress: StageCallback | None = None
) -> DesignResult:
    """Return the best design that fits, with the fastest candidate of its training run.

    A design fits if a candidate's estimated memory is at most ``ROOM`` of a device's, and if its roofline reaches the
    assumed MFU.

    Args:
      design: returns the design under a constraint on ``memory_bytes``, the state on all chips.
      progress: called with the step, its number and the largest number of steps.

    Raises:
      UserError: the topology's memory is unknown, no model was built, or none fits.
    """
    room = ROOM * topology.known_chip.device.memory_bytes
    limit, fits, too_large, fastest = room * topology.devices, 0.0, math.inf, 0.0
    found = decision = None
    for number in range(TRIES):
        if progress:
            progress(f"state of at most {format_bytes(limit / topology.devices, 3)} per device", number, TRIES)
        decision = design(Constraint(name="memory_bytes", high=limit))
        if decision.built is None:
            raise UserError(f"No model was built for {topology.name}. {decision.not_built}")
        training = choose_hyperparameters(build(Training, decision.training(), "training")).training
        best = next(iter(candidates(training, topology)), None)
        on = None if best is None else _on(topology, best)
        fastest = max(fastest, 0.0 if on is None else on.roofline_mfu)
        if on is not None and on.roofline_mfu >= decision.optimum.problem.assumptions.mfu:
            found, fits = replace(decision, on_topology=on), limit
        else:
            # A design that another constraint keeps small needs less than the limit.
            too_large = min(limit, decision.built.measures["memory_bytes"])
        if too_large == math.inf or fits >= CLOSE * too_large:
            break
        if fits:
            limit = math.sqrt(fits * too_large)
        elif on is not None:
            limit = STEP * too_large
        else:
            least = smallest(training, topology)
            if least is None:
                raise UserError(
                    f"No mesh of {topology.name} divides the model and its batch of "
                    f"{training.recipe.batch_sequences} sequences; give another number of chips."
                )
            limit = too_large * min(room / least.memory_bytes, CLOSE)
    if found is None and decision is not None and fastest:
        mfu = decision.optimum.problem.assumptions.mfu
        raise UserError(
            f"No design reaches the assumed MFU of {mfu:.0%} on {topology.name}; the highest by the roofline is "
            f"{fastest:.0%}. Assume less ({argument('mfu', f'{fastest:.2g}')}), or give other chips."
        )
    if found is None:
        raise UserError(f"No design fits on {topology.name}; use more or larger chips, or a smaller budget.")
    return found


def _on(topology: Topology, best: PlanCandidate) -> OnTopology:
    recipe = best.training.recipe
    return OnTopology(
        topology=topology.name,
        chips=topology.chips,
        choice=best.words,
        mesh=asdict(recipe.mesh),
        remat=recipe.runtime.remat,
        microbatches=recipe.microbatches,
        memory_bytes=best.memory_bytes,
        device_memory_bytes=topology.known_chip.device.memory_bytes,
        roofline_mfu=mfu_of_step(best.training, topology, best.seconds),
    )
