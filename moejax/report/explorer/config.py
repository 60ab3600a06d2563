"""The config file of what is chosen, which `moejax train`, `plan`, `count` and `design` read."""

from __future__ import annotations

from moejax.architecture import Architecture
from moejax.design.build import build, config_text, max_tokens_within
from moejax.design.constraint import Constraint, held
from moejax.design.coordinates import Shapes
from moejax.design.decide import DENSE, MIXTURE
from moejax.design.problem import Problem, optimise
from moejax.errors import UserError
from moejax.laws.catalogue import CATALOGUE, find
from moejax.laws.effective_params import CHAPTER_002
from moejax.report.explorer.state import ExplorerState
from moejax.result import size

SHORT = 0.9
"""Share of the total parameters that whole numbers may fall to."""


def config(state: ExplorerState) -> str:
    """A Python file with the published model that is chosen, or the buildable shape nearest to the sliders.

    Such a shape has the proportions of GLM-4.5-Air, or without experts of Tian's dense 6.1B, and the sliders' numbers
    rounded: active experts, shared ones, granularity; width and number of experts follow from active and total
    parameters.

    Raises:
      UserError: no whole-numbered shape comes near.
    """
    like = find(state.model).architecture if state.model else _like(state)
    total = state.params_active * state.expansion
    constraints = held({"tokens": state.tokens})
    if not state.model:
        constraints += held({"params_active": state.params_active})
        if like.is_moe:
            constraints += (Constraint(name="params_total", low=SHORT * total, high=total),)
    # All that a shape can be is held, so that the law decides nothing: any that reads both sizes would do.
    problem = Problem(law=CHAPTER_002, constraints=constraints, space=Shapes(like, CHAPTER_002.inputs))
    built = max_tokens_within(problem, like) if state.model else build(optimise(problem))
    if built is None:
        raise UserError("No whole-numbered shape comes near these numbers; move a slider, or take a published model.")
    what = state.model or f"{size(state.params_active, 3)} active of {size(total, 3)} parameters"
    says = f"From moejax explore: {what}, {size(state.tokens, 3)} tokens."
    return config_text(built, state.model or "explored", says, problem.assumptions.sequence_length)


def _like(state: ExplorerState) -> Architecture:
    if state.expansion < 1 / SHORT:
        return CATALOGUE[DENSE].architecture
    like = CATALOGUE[MIXTURE].architecture
    shared = round(state.active_experts * state.shared_share)
    return like.replace(
        num_shared_experts=shared,
        top_k=max(1, round(state.active_experts) - shared),
        expert_hidden=max(1, round(2 * like.model_dim / state.granularity)),
        shared_expert_gate=like.shared_expert_gate and shared > 0,
    )
