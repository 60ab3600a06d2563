"""What can be turned, the coordinates of a design with the ends and steps of their sliders; what is chosen, a law and
the numbers of a design; and the same as the query of a link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from moejax.config import unknown
from moejax.design.coordinates import (
    ACTIVE_EXPERTS,
    EXPANSION,
    EXPERT_EXPANSION,
    FLOPS,
    GRANULARITY,
    PARAMS_ACTIVE,
    SHARED_SHARE,
    TOKENS,
    UNIQUE_TOKENS,
    Coordinate,
)
from moejax.errors import UserError
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import find
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.quantities import parse

PER_DECADE = 20
PER_UNIT = 50


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One slider."""

    coordinate: Coordinate
    words: str
    letters: str
    """What the papers call it."""
    low: float
    high: float
    limit: bool = False
    """Whether there may be none: the slider's last step is infinite."""

    @property
    def most(self) -> float:
        """The largest value."""
        return math.inf if self.limit else self.high

    @property
    def name(self) -> str:
        """The coordinate's name."""
        return self.coordinate.name

    @property
    def grid(self) -> list[float]:
        """The slider's steps, of two digits where they are sizes."""
        if self.coordinate.linear:
            return np.linspace(self.low, self.high, round((self.high - self.low) * PER_UNIT) + 1).round(4).tolist()
        count = round(np.log10(self.high / self.low) * PER_DECADE) + 1
        return sorted({float(f"{value:.2g}") for value in np.geomspace(self.low, self.high, count)})

    def steps(self, value: float) -> tuple[list[float], int]:
        """The grid with one more step at ``value``, which stays exact, and the number of that step."""
        kept = min(max(value, self.low), self.most)
        steps = sorted({*self.grid, self.most, kept})
        return steps, steps.index(kept)

    def line(self, count: int) -> np.ndarray:
        """Values from end to end, as evenly as the coordinate is searched."""
        return (np.linspace if self.coordinate.linear else np.geomspace)(self.low, self.high, count)


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(coordinate=PARAMS_ACTIVE, words="active parameters", letters="N_act", low=1e4, high=1e13),
        Knob(coordinate=EXPANSION, words="total / active parameters", letters="N/N_act", low=1.0, high=200.0),
        Knob(coordinate=EXPERT_EXPANSION, words="experts per active one", letters="E", low=1.0, high=1000.0),
        Knob(coordinate=ACTIVE_EXPERTS, words="active experts", letters="G of Zhao", low=1.0, high=64.0),
        Knob(coordinate=SHARED_SHARE, words="shared share of them", letters="S", low=0.0, high=0.9),
        Knob(coordinate=GRANULARITY, words="granularity", letters="G of Tian", low=0.25, high=64.0),
        Knob(coordinate=FLOPS, words="training FLOPs", letters="C", low=1e12, high=1e28),
        Knob(coordinate=TOKENS, words="training tokens", letters="D", low=1e5, high=1e17),
        Knob(coordinate=UNIQUE_TOKENS, words="unique tokens", letters="U_D", low=1e5, high=1e15, limit=True),
    )
}
"""Every slider by the name of its coordinate, in the order of the page."""

STRUCTURE = ("params_active", "expansion", "expert_expansion", "active_experts", "shared_share", "granularity")
"""What a model is, whatever it is trained on."""


BUDGET = 3.4e24
"""FLOPs at which the explorer starts: DeepSeek-V3's, as chapter 002 counts them."""
PRESETS = {
    "dense 70B": (70e9, 1.0),
    "DeepSeek 671B / 37B": (37e9, 18.1),
    "Switch 112B / 7B": (7e9, 16.0),
}
"""Active parameters and expansion of the three configurations that chapter 002 compares at this budget."""


@dataclass(frozen=True, kw_only=True)
class ExplorerState:
    """A law and one design. Tokens follow from FLOPs: 6·N_act·D = C."""

    law: str = "effective_params:chapter-002"
    """A key of ``Available.laws``."""
    model: str = ""
    """The published model whose numbers these are, if they are one's."""
    params_active: float = 37e9
    expansion: float = 18.1
    expert_expansion: float = 18.1
    active_experts: float = 9.0
    shared_share: float = 1 / 9
    granularity: float = 7.0
    flops: float = BUDGET
    unique_tokens: float = math.inf
    """Different tokens there are to train on; without a limit no token returns."""
    embedding_share: float = 0.0
    """Embeddings as a share of the active parameters, for laws that do not count them."""

    @property
    def tokens(self) -> float:
        """Training tokens."""
        return self.flops / (FLOPS_PER_PARAM_AND_TOKEN * self.params_active)

    @property
    def epochs(self) -> float:
        """How often a token is seen; at least 1."""
        return max(1.0, self.tokens / self.unique_tokens)

    @property
    def values(self) -> dict[str, float]:
        """The numbers from which all else follows."""
        return {name: getattr(self, name) for name in (*STRUCTURE, "flops", "unique_tokens", "embedding_share")}

    def moved(self, name: str, value: float) -> ExplorerState:
        """After a slider: FLOPs stay when the size moves, and follow tokens."""
        if name == "tokens":
            return replace(self, flops=FLOPS_PER_PARAM_AND_TOKEN * self.params_active * value)
        changes: dict[str, Any] = {name: value}
        return replace(self, model="", **changes) if name in STRUCTURE else replace(self, **changes)

    def like(self, model: str) -> ExplorerState:
        """The sizes of a published model, at the budget that is chosen; the same state for no model.

        A dense model counts as one expert of one.
        """
        if not model:
            return replace(self, model="")
        design = design_of(find(model).architecture, 1.0)
        dense = not design.num_experts
        return replace(
            self,
            model=model.lower(),
            params_active=float(design.params_active),
            expansion=float(design.expansion),
            expert_expansion=float(design.expert_expansion),
            active_experts=1.0 if dense else float(design.active_experts),
            shared_share=0.0 if dense else float(design.shared_share),
            granularity=float(design.granularity),
            embedding_share=float(design.params_embedding / design.params_active),
        )

    def preset(self, name: str) -> ExplorerState:
        """One of ``PRESETS``. The chapter gives N_act, G and C; all parameters are taken to be experts."""
        active, expansion = PRESETS[name]
        sizes = {"params_active": active, "expansion": expansion, "expert_expansion": expansion}
        return replace(self, model="", flops=BUDGET, embedding_share=0.0, **sizes)

    def dense(self) -> ExplorerState:
        """The same with one expert of one: where the two curves are one."""
        return replace(self, model="", expansion=1.0, expert_expansion=1.0)

    def link(self, start: ExplorerState) -> str:
        """The query from which ``of_link`` makes this state: what differs from ``start``; empty there."""
        like = start.like(self.model)
        changed = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(like, f.name)
        }
        if self.model != start.model:
            changed = {"model": self.model, **changed}
        written = {name: _written(value) for name, value in changed.items()}
        return f"?{urlencode(written, safe=':.')}" if written else ""


def of_link(query: Mapping[str, Any], laws: Mapping[str, Any], start: ExplorerState) -> tuple[ExplorerState, list[str]]:
    """Return the state that a link describes, from ``start``, and a sentence for each value that was refused.

    A refused value keeps that of ``start``; names that are no field are ignored.
    """
    given = {f.name: str(query[f.name]) for f in fields(ExplorerState) if f.name in query}
    state, refusals = start, []
    # A model comes first: numbers beside it differ from its own.
    for name in sorted(given, key=lambda name: name != "model"):
        try:
            state = _with(state, name, given[name], laws)
        except UserError as why:
            refusals.append(str(why))
    return state, refusals


def _with(state: ExplorerState, name: str, text: str, laws: Mapping[str, Any]) -> ExplorerState:
    if name == "model":
        return state.like(text)
    if name != "law":
        return replace(state, **{name: _number(name, text)})
    if text not in laws:
        raise UserError(unknown(f"law={text}", text, list(laws)))
    return replace(state, law=text)


def _number(name: str, text: str) -> float:
    low, high = (KNOBS[name].low, KNOBS[name].most) if name in KNOBS else (0.0, 1.0)
    try:
        value = math.inf if text == "inf" else parse(text)
    except UserError:
        value = math.nan
    if not low <= value <= high:
        raise UserError(f"The link has {name}={text}; give a number between {low:g} and {high:g}.")
    return value


def _written(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value!r}".replace("e+", "e")
