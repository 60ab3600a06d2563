"""Define search coordinates: the sizes that a law reads, or the shape of an architecture. Proportions that are not
searched come from a given model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from moejax.architecture import Architecture
from moejax.laws.accounting import design_of
from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, ActiveParams, sentence
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design
from moejax.ranges import Number


@dataclass(frozen=True, kw_only=True)
class Coordinate:
    """A quantity that the search chooses."""

    name: str
    meaning: str
    low: float
    high: float
    """Upper bound of the search. A solution on this bound is not an optimum: the law decreases without limit."""
    least: bool = False
    """True if ``low`` is the smallest possible value, such as one expert, and not a bound of the search."""
    starts: tuple[float, float]
    """Range of initial guesses."""
    linear: bool = False
    """True to search the value itself, because it may be 0, instead of its logarithm."""
    starts_at_high: bool = False
    """True to start the search at the upper bound, because larger values never increase the loss."""

    def scaled(self, value: float) -> float:
        """Return the value on the scale of the search."""
        return value if self.linear else math.log(value) if value > 0 else -math.inf

    def plain(self, scaled: Number) -> Number:
        """Return the plain value: the inverse of ``scaled``."""
        return scaled if self.linear else jnp.exp(scaled)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The design for given coordinates."""

    design: Design
    architecture: Architecture | None = None
    """Architecture; None if only sizes are chosen."""
    epochs: Number | None = None
    """Passes over the unique tokens; None if these are unlimited."""


def trained_on(design: Design, unique_tokens: Number | None, architecture: Architecture | None = None) -> Candidate:
    """Return a design trained on ``unique_tokens`` different tokens; if None, no token is repeated."""
    if unique_tokens is None:
        return Candidate(design=replace(design, unique_tokens=design.tokens), architecture=architecture)
    unique = replace(design, unique_tokens=unique_tokens)
    return Candidate(design=unique, architecture=architecture, epochs=design.tokens / unique_tokens)


PARAMS_ACTIVE = Coordinate(
    name="params_active",
    meaning="parameters that serve one token",
    low=1e3,
    high=1e15,
    starts=(1e7, 1e12),
)
EXPANSION = Coordinate(
    name="expansion",
    meaning="total / active parameters",
    low=1.0,
    high=1e4,
    least=True,
    starts=(1.5, 30.0),
)
EXPERT_EXPANSION = Coordinate(
    name="expert_expansion",
    meaning="routed experts / routed experts that serve a token",
    low=1.0,
    high=1e4,
    least=True,
    starts=(1.5, 30.0),
)
ACTIVE_EXPERTS = Coordinate(
    name="active_experts",
    meaning="routed and shared experts that serve a token",
    low=1.0,
    high=1e4,
    least=True,
    starts=(2.0, 20.0),
)
SHARED_SHARE = Coordinate(
    name="shared_share",
    meaning="shared experts as a share of the experts that serve a token",
    low=0.0,
    high=0.99,
    least=True,
    starts=(0.05, 0.6),
    linear=True,
)
GRANULARITY = Coordinate(
    name="granularity",
    meaning="2 · model width / expert width",
    low=1e-2,
    high=1e5,
    starts=(1.0, 20.0),
)
TOKENS = Coordinate(name="tokens", meaning="training tokens", low=1e4, high=1e18, starts=(1e9, 1e14))
UNIQUE_TOKENS = Coordinate(
    name="unique_tokens",
    meaning="different tokens available for training",
    low=1e4,
    high=1e18,
    starts=(1e9, 1e14),
    starts_at_high=True,
)
FLOPS = Coordinate(name="flops", meaning="training FLOPs", low=1e8, high=1e32, starts=(1e19, 1e24))


EXPANSIONS = (EXPANSION.name, EXPERT_EXPANSION.name)
"""Coordinates that are 1 for a dense model."""


@dataclass(frozen=True)
class Sizes:
    """A search space of the sizes that a law reads; the law's ``inputs`` determine the coordinates.

    Training takes 6 FLOPs per active parameter and token. If a law reads the number of experts, ``active_params`` gives
    the ratio of total to active parameters from the ratio of all to active routed experts. Embeddings are not treated
    separately.
    """

    inputs: tuple[str, ...]
    active_params: ActiveParams = ACTIVE_PARAMS[DEFAULT]
    """Active-parameter convention from ``laws/active_params.py``."""

    @property
    def assumes(self) -> str:
        """Return a sentence on the active-parameter convention if it affects the law, else an empty string."""
        matters = "num_experts" in self.inputs and bool({"params_total", "params_active"} & set(self.inputs))
        return sentence(self.active_params, reads_total="params_total" in self.inputs) if matters else ""

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates in the order sizes, experts, tokens."""
        reads = set(self.inputs)
        sizes, experts = bool(reads & {"params_active", "params_total"}), "num_experts" in reads
        chosen = {
            PARAMS_ACTIVE: sizes,
            EXPANSION: "params_total" in reads and not experts,
            EXPERT_EXPANSION: experts,
            ACTIVE_EXPERTS: {"top_k", "num_shared_experts"} <= reads and not experts,
            SHARED_SHARE: {"top_k", "num_shared_experts"} <= reads and not experts,
            GRANULARITY: {"model_dim", "expert_hidden"} <= reads,
            TOKENS: sizes,
            UNIQUE_TOKENS: sizes and "unique_tokens" in reads,
            FLOPS: "flops" in reads and not sizes,
        }
        return tuple(coordinate for coordinate, is_chosen in chosen.items() if is_chosen)

    @property
    def at_least(self) -> Mapping[str, float]:
        """Return an empty mapping of additional lower bounds, because the coordinates' own bounds suffice."""
        return {}

    def candidate(self, values: Mapping[str, Any]) -> Candidate:
        """Return the design with these sizes; without coordinates for experts, it has 1 expert."""
        active, tokens = values.get("params_active"), values.get("tokens")
        routed = values.get("expert_expansion", 1.0)
        # In every convention the active share of N depends only on S.
        expansion = values["expansion"] if "expansion" in values else 1 / self.active_params(1.0, 1 - 1 / routed)
        experts, share = values.get("active_experts", 1.0), values.get("shared_share", 0.0)
        return trained_on(
            Design(
                params_active=active,
                params_total=None if active is None else active * expansion,
                tokens=tokens,
                flops=values.get("flops") if active is None else FLOPS_PER_PARAM_AND_TOKEN * active * values["tokens"],
                top_k=experts * (1 - share),
                num_shared_experts=experts * share,
                num_experts=experts * (1 - share) * routed,
                model_dim=values.get("granularity", 1.0),
                expert_hidden=2.0,
            ),
            values.get("unique_tokens"),
        )


MODEL_DIM = Coordinate(name="model_dim", meaning="width of the residual stream", low=16.0, high=1e6, starts=(1e3, 1e4))
NUM_LAYERS = Coordinate(
    name="num_layers", meaning="number of layers", low=1.0, high=1e4, least=True, starts=(16.0, 100.0)
)
NUM_EXPERTS = Coordinate(
    name="num_experts", meaning="routed experts of a layer", low=1.0, high=1e5, least=True, starts=(32.0, 256.0)
)
TOP_K = Coordinate(
    name="top_k", meaning="routed experts that serve a token", low=1.0, high=1e4, least=True, starts=(2.0, 12.0)
)
EXPERT_HIDDEN = Coordinate(name="expert_hidden", meaning="width of an expert", low=1.0, high=1e6, starts=(5e2, 4e3))
NUM_SHARED = Coordinate(
    name="num_shared_experts",
    meaning="experts that serve every token",
    low=0.0,
    high=1e3,
    least=True,
    starts=(0.5, 2.0),
    linear=True,
)
DIMENSIONS = (MODEL_DIM, NUM_LAYERS, NUM_EXPERTS, TOP_K, EXPERT_HIDDEN, NUM_SHARED)
"""Dimensions of a shape that can be searched."""
OF_EXPERTS = tuple(one.name for one in (NUM_EXPERTS, TOP_K, EXPERT_HIDDEN, NUM_SHARED))
"""Dimensions that only an MoE model has."""
SET_BY = {
    **{one.name: one.name for one in DIMENSIONS},
    "expansion": NUM_EXPERTS.name,
    "expert_expansion": NUM_EXPERTS.name,
    "activation_ratio": NUM_EXPERTS.name,
    "active_experts": TOP_K.name,
    "routed_share": NUM_SHARED.name,
    "granularity": EXPERT_HIDDEN.name,
}
"""Dimension that a fixed value makes a coordinate, even if the law does not read it, keyed by the name of the value."""


@dataclass(frozen=True)
class Shapes:
    """A search space of tokens and of architectures with the proportions of ``like``, whose parameters are counted
    exactly.

    The search chooses the model width, further quantities that the law reads (``inputs``) and those that a fixed value
    determines (``constrained``). Other quantities are not optimized, because the search would choose their cheapest
    value, such as one very wide layer. They keep their ratio to the width (depth, heads, feed-forward) or their number
    (active experts). Vocabulary and kind of attention are unchanged.
    """

    like: Architecture
    inputs: tuple[str, ...]
    sequence_length: int = 4096
    """Sequence length for training FLOPs."""
    constrained: tuple[str, ...] = ()
    """Dimensions that are coordinates because of a fixed value (``SET_BY``)."""

    @property
    def assumes(self) -> str:
        """Return an empty string, because parameters of shapes are counted exactly."""
        return ""

    @property
    def at_least(self) -> Mapping[str, float]:
        """Return the lower bound of routed experts per active routed expert, keyed by measure."""
        return {"expert_expansion": 1.0} if self.like.is_moe else {}

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of an MoE model or of a dense model, depending on ``like``."""
        reads, mixture = set(self.inputs), self.like.is_moe
        counted = mixture and {"top_k", "num_shared_experts"} <= reads and "num_experts" not in reads
        chosen = {
            MODEL_DIM: True,
            NUM_LAYERS: "num_layers" in reads,
            NUM_EXPERTS: mixture and bool({"params_total", "num_experts"} & reads),
            TOP_K: counted,
            EXPERT_HIDDEN: mixture and {"model_dim", "expert_hidden"} <= reads,
            NUM_SHARED: counted,
            TOKENS: True,
            UNIQUE_TOKENS: "unique_tokens" in reads,
        }
        return tuple(one for one, is_chosen in chosen.items() if is_chosen or one.name in self.constrained)

    def candidate(self, values: Mapping[str, Any]) -> Candidate:
        """Return the real-valued architecture and its design."""
        names = {c.name for c in self.coordinates} - {"tokens", "unique_tokens"}
        wider = values["model_dim"] / self.like.model_dim
        architecture = self.like.replace(**{name: getattr(self.like, name) * wider for name in SCALED}).replace(
            **{name: values[name] for name in names}
        )
        design = design_of(architecture, values["tokens"], self.sequence_length)
        return trained_on(design, values.get("unique_tokens"), architecture)


SCALED = ("num_layers", "num_heads", "num_kv_heads", "expert_hidden", "shared_hidden", "dense_hidden")
"""Fields that scale with the model width unless the search chooses them."""

Space = Sizes | Shapes
"""A search space; hashable, so that equal spaces share a compiled program."""
