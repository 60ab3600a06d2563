"""Define conventions for the active parameters of a model with N total parameters and sparsity S.

Compute-optimal statements of Abnar et al. (2025) need N_a(N, S), which the paper does not give. The three conventions
are frozen pytrees ``convention(params_total, sparsity) -> params_active`` with N_a = N at S = 0. ``DEFAULT`` is used by
every command unless ``--active-convention`` chooses another; every output names the convention used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.design import Scalar
from moejax.pytree import pytree
from moejax.wording import option_hint


class ActiveParams(Protocol):
    """A convention: active parameters from total parameters and sparsity."""

    @property
    def meaning(self) -> str:
        """Return the convention in words."""
        ...

    def __call__(self, params_total: Scalar, sparsity: Scalar) -> Any: ...


@pytree
@dataclass(frozen=True)
class Proportional:
    """N_a = (1-S)·N: all parameters belong to experts."""

    @property
    def meaning(self) -> str:
        """Return the convention in words."""
        return "N_a = (1-S)·N"

    def __call__(self, params_total: Scalar, sparsity: Scalar) -> Any:
        return (1 - sparsity) * params_total


@pytree
@dataclass(frozen=True)
class BackboneByActive:
    """Parameters outside the experts are ``ratio`` times the active experts' parameters.

    This holds if experts are added to a fixed backbone: with X expert parameters, N = X + ratio·(1-S)·X.
    """

    ratio: Scalar

    @property
    def meaning(self) -> str:
        """Return the convention in words."""
        times = "half" if self.ratio == 0.5 else f"{self.ratio:g} times"
        return f"parameters outside the experts being {times} the active experts'"

    def __call__(self, params_total: Scalar, sparsity: Scalar) -> Any:
        active = 1 - sparsity
        return params_total * (1 + self.ratio) * active / (1 + self.ratio * active)


@pytree
@dataclass(frozen=True)
class BackboneByTotal:
    """Parameters outside the experts are a fixed ``share`` of all: N_a = (share + (1-share)·(1-S))·N.

    At high S (beyond 0.95 for a share of 5 %, 0.75 for 25 %) this convention reverses the document's trends: N_a* no
    longer falls with S, because the backbone dominates.
    """

    share: Scalar

    @property
    def meaning(self) -> str:
        """Return the convention in words."""
        return f"parameters outside the experts being {100 * self.share:g} % of all"

    def __call__(self, params_total: Scalar, sparsity: Scalar) -> Any:
        return params_total * (self.share + (1 - self.share) * (1 - sparsity))


@pytree
@dataclass(frozen=True)
class AtExpansion:
    """N_a = N / ``expansion`` at every sparsity, for models whose ratio of total to active parameters is known."""

    expansion: Scalar

    @property
    def meaning(self) -> str:
        """Return the convention in words."""
        return f"N_a = N/{self.expansion:g}"

    def __call__(self, params_total: Scalar, sparsity: Scalar) -> Any:
        return params_total / self.expansion


ACTIVE_PARAMS = {
    "proportional": Proportional(),
    "backbone_by_active": BackboneByActive(ratio=0.5),
    "backbone_by_total": BackboneByTotal(share=0.05),
}
"""Conventions by name. The paper gives no ``ratio`` or ``share``; these values are examples."""
DEFAULT = "proportional"
"""Default convention."""


def convention(name: str | None = None) -> Any:
    """Return the convention with this name, or ``DEFAULT`` if ``name`` is None.

    Raises:
      UserError: there is no such convention.
    """
    name = DEFAULT if name is None else name.replace("-", "_")
    if name not in ACTIVE_PARAMS:
        raise UserError(unknown(f"active-parameter convention {name!r}", name, list(ACTIVE_PARAMS)))
    return ACTIVE_PARAMS[name]


def sentence(taken: ActiveParams, *, reads_total: bool = True) -> str:
    """Return a sentence that names a convention, for outputs that depend on it.

    Args:
      reads_total: True if the law reads total parameters and sparsity, like that of Abnar et al.; False if it reads
        active parameters, so that the convention gives the total parameters.
    """
    name = next((name for name, one in ACTIVE_PARAMS.items() if one == taken), type(taken).__name__)
    counts, but = ("Active", ". Abnar et al. give no convention") if reads_total else ("Total", "")
    return (
        f"{counts} parameters follow the convention {name} ({taken.meaning}){but}"
        f"{option_hint('; choose one with --active-convention')}."
    )
