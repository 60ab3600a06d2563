"""Define the common input of every law: a model and its training tokens, with names that are independent of papers.

The papers use the same letters for different quantities:

====== ======================== ======================== ====================== ======================== ==============
letter Zhao                     Abnar                    Krajewski, Ludziejewski Tian                    chapter 002
====== ======================== ======================== ====================== ======================== ==============
G      ``active_experts``       ``granularity`` (not in  ``granularity``·2      ``granularity``          ``expansion``
                                the law)
S      ``shared_share``         ``sparsity``             –                      ``shared_share``         –
N      non-embedding total      total                    see each law           non-embedding total      –
====== ======================== ======================== ====================== ======================== ==============

``LETTERS`` maps these letters by law, for the constraints of ``moejax design``. A law's ``inputs`` name the fields of
``Design`` that it reads; ratios such as ``sparsity`` are properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from moejax.pytree import pytree

Scalar: TypeAlias = float | np.ndarray | Array
"""A number, plain, traced or batched."""
Quantity = Any
"""A number, or an array with one leading axis that all fields share."""


@pytree
@dataclass(frozen=True, kw_only=True)
class Design:
    """A planned or finished training run as the input of laws. Unknown fields are None.

    Laws are written for one point. A Design of arrays holds many points; apply a law to it with ``jax.vmap``.
    """

    params_total: Quantity = None
    """Total parameters, including embeddings (Abnar's N)."""
    params_active: Quantity = None
    """Parameters that serve one token, including embeddings."""
    params_embedding: Quantity = None
    """Parameters of embedding and unembedding, included in both counts above; None counts as 0."""
    tokens: Quantity = None
    """Training tokens D."""
    unique_tokens: Quantity = None
    """Number of different tokens in the training data; if ``tokens`` is larger, tokens are repeated."""
    flops: Quantity = None
    """Training FLOPs C, forward and backward."""
    num_experts: Quantity = None
    """Routed experts per MoE layer; 0 if dense."""
    top_k: Quantity = None
    """Routed experts that serve one token."""
    num_shared_experts: Quantity = None
    """Experts that serve every token, in units of a routed expert's width: an expert of half that width counts as
    0.5."""
    model_dim: Quantity = None
    """Width of the residual stream."""
    num_layers: Quantity = None
    """Number of layers."""
    expert_hidden: Quantity = None
    """Width of one routed expert (of the feed-forward, if dense)."""
    columns: Any = None
    """Other columns that a law reads, such as ``loss``, by name."""

    @property
    def loss(self) -> Quantity:
        """Loss of the run in nats per token, the input of score laws; None if ``columns`` has no loss."""
        return (self.columns or {}).get("loss")

    @property
    def params_total_nonembedding(self) -> Quantity:
        """Parameters without embedding and unembedding (N of Zhao and Tian)."""
        return _without(self.params_total, self.params_embedding)

    @property
    def params_active_nonembedding(self) -> Quantity:
        """Active parameters without embedding and unembedding (N_a of Zhao and Tian)."""
        return _without(self.params_active, self.params_embedding)

    @property
    def unique_tokens_seen(self) -> Quantity:
        """Different tokens among the training tokens (Muennighoff's U_D)."""
        return jnp.minimum(self.unique_tokens, self.tokens)

    @property
    def epochs(self) -> Quantity:
        """Passes over the unique tokens; at least 1."""
        return self.tokens / self.unique_tokens_seen

    @property
    def tokens_per_param(self) -> Quantity:
        """Training tokens per active parameter (D/N)."""
        return self.tokens / self.params_active

    @property
    def expansion(self) -> Quantity:
        """Total parameters / active parameters (chapter 002's G); 1 for a dense model."""
        return self.params_total / self.params_active

    @property
    def active_experts(self) -> Quantity:
        """Routed and shared experts that serve one token (Zhao's G)."""
        return self.top_k + self.num_shared_experts

    @property
    def shared_share(self) -> Quantity:
        """Share of shared experts among the experts that serve one token (Zhao's and Tian's S)."""
        return self.num_shared_experts / self.active_experts

    @property
    def sparsity(self) -> Quantity:
        """Share of experts that do not serve a token (Abnar's S); 0 for a dense model."""
        return 1 - 1 / self.expert_expansion

    @property
    def activation_ratio(self) -> Quantity:
        """Share of experts that serve a token, including shared ones (Tian's A); 1 for a dense model."""
        every = self.num_experts + self.num_shared_experts
        return _where(every > 0, self.active_experts / _where(every > 0, every, 1), 1)

    @property
    def expert_expansion(self) -> Quantity:
        """``num_experts`` / ``top_k`` (Ludziejewski's E, Clark's E at k = 1).

        It is 1 for a dense model, whether its ``num_experts`` and ``top_k`` are 0 or 1.
        """
        mixture = (self.num_experts > 0) & (self.top_k > 0)
        return _where(mixture, self.num_experts / _where(mixture, self.top_k, 1), 1)

    @property
    def granularity(self) -> Quantity:
        """2·``model_dim`` / ``expert_hidden`` (Tian's G)."""
        return 2 * self.model_dim / self.expert_hidden


def _where(condition: Any, chosen: Any, other: Any) -> Any:
    """Apply ``jnp.where``, without compiling a program for plain numbers and NumPy arrays."""
    if any(isinstance(part, jax.Array) for part in (condition, chosen, other)):
        return jnp.where(condition, chosen, other)
    return np.where(condition, chosen, other) if np.ndim(condition) else chosen if condition else other


def _without(params: Quantity, embedding: Quantity) -> Quantity:
    return params if embedding is None else params - embedding


COMMON_LETTERS = {"C": "flops", "D": "tokens", "N_a": "params_active", "N_act": "params_active"}
"""Fields by the letters that all papers share."""
_ZHAO = {"N": "params_total", "G": "active_experts", "S": "shared_share"}
_ABNAR = {"N": "params_total", "S": "sparsity"}
_DENSE = {"N": "params_active"}
_EXPERTS = {"N": "params_active", "E": "expert_expansion"}
LETTERS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("kaplan", "chinchilla", "data_constrained", "over_training"), _DENSE),
    **dict.fromkeys(("five_factor", "four_factor", "three_factor", "two_factor"), _ZHAO),
    **dict.fromkeys(("marginal_active", "marginal_experts", "marginal_shared"), _ZHAO),
    **dict.fromkeys(("sparsity", "isoflop_surface"), _ABNAR),
    **dict.fromkeys(("expert_count", "routed"), _EXPERTS),
    "granularity": {"N": "params_total", "G": "granularity"},
    "dense_to_moe": {"N": "params_active", "E": "num_experts"},
    "effective_params": {"G": "expansion"},
    "leverage": {"A": "activation_ratio", "G": "granularity", "S": "shared_share"},
    "resources": {"N": "params_total"},
    "step_law": {"N": "params_total"},
    "width_depth": {"w": "model_dim", "d": "num_layers", "p": "params_active", "T": "tokens"},
}
"""Fields by letter of the law's paper, keyed by law name."""
SCALED_LETTERS = {("granularity", "G"): 0.5}
"""Factor from the paper's value to a Design's, by law and letter: Krajewski's G is 4·d_model / d_expert."""

FIELDS = tuple(f.name for f in fields(Design) if f.name != "columns")

DERIVED = {
    "expansion": ("params_total", "params_active"),
    "active_experts": ("top_k", "num_shared_experts"),
    "shared_share": ("top_k", "num_shared_experts"),
    "expert_expansion": ("num_experts", "top_k"),
    "sparsity": ("num_experts", "top_k"),
    "activation_ratio": ("num_experts", "top_k", "num_shared_experts"),
    "granularity": ("model_dim", "expert_hidden"),
}
"""Properties of a Design with the fields that they need."""


def value_of(design: Design, name: str) -> Quantity:
    """Return a column, field or property of a design; None if the design lacks it."""
    columns = design.columns or {}
    return columns[name] if name in columns else getattr(design, name, None)


def known(design: Design) -> dict[str, Quantity]:
    """Return the fields of a design that are not None, and its columns, keyed by name."""
    given = {name: value for name in FIELDS if (value := getattr(design, name)) is not None}
    return given | dict(design.columns or {})


def design_from(values: Mapping[str, Quantity]) -> Design:
    """Return the design with these fields; other names become columns."""
    columns = {name: value for name, value in values.items() if name not in FIELDS}
    return Design(**{name: value for name, value in values.items() if name in FIELDS}, columns=columns or None)


KINDS = {
    "params": ("params_total", "params_active", "params_embedding"),
    "tokens": ("tokens", "unique_tokens"),
    "flops": ("flops",),
}
"""Fields that share a unit, by the unit's kind."""

POSSIBLE = {"params": (1e3, 1e14), "tokens": (1e4, 1e16), "flops": (1e8, 1e30)}
"""Plausible bounds by kind; toy models in pipeline tests have a few thousand parameters."""
WORDS = {"params": "parameters", "tokens": "tokens", "flops": "FLOPs"}
COUNTED = ("params_active", "params_total", "tokens", "unique_tokens", "flops")
"""Fields that must be within ``POSSIBLE``; the number of embedding parameters may be small or 0."""
THOUSAND = 3
"""Decades in a factor of 1,000; units of counts are powers of 1,000."""


def kind_of(name: str) -> str:
    """Return the kind of a field of ``COUNTED``."""
    return next(kind for kind, names in KINDS.items() if name in names)


def in_units(design: Design, units: Mapping[str, Any]) -> Design:
    """Return the design with counts in other units; ``units`` gives the size of a unit by its kind.

    A column outside ``KINDS`` is its own kind.
    """
    changes = {
        name: value / size
        for kind, size in units.items()
        for name in KINDS.get(kind, (kind,))
        if (value := value_of(design, name)) is not None
    }
    return design_from(known(design) | changes)
