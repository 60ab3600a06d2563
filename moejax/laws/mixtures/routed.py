"""The unified law of routed language models, Clark et al. (2022): loss from dense size and number of experts."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from moejax.laws.decision import DecisionRule
from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


def saturate(value: Scalar, start: Scalar, maximum: Scalar, least: Scalar) -> Any:
    """Return x̂ with 1/x̂ = 1/(x - least + 1/(1/start - 1/maximum)) + 1/maximum.

    x̂ is ``start`` at x = ``least`` and approaches ``maximum``. Clark et al. (2022) use least = 1 expert; Tian et al.
    (2025), Eq. 1, use least = 0.
    """
    return 1 / (1 / (value - least + 1 / (1 / start - 1 / maximum)) + 1 / maximum)


@law
class Routed:
    """log10 L = a·log10 N + b·log10 Ê + c·log10 N·log10 Ê + d,
    with 1/Ê = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max.

    Clark et al., "Unified Scaling Laws for Routed Language Models" (2022), Eq. 1 and Table 3.

    N is ``params_active``: the parameters of the dense model that the experts extend. E is ``expert_expansion``, the
    number of experts at k = 1, and Ê is E after saturation. L is in nats per token after 130B tokens: the law has no
    data term, so do not use it for questions about tokens.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_active", "num_experts", "top_k")
    outputs: ClassVar = LOSS

    params_slope: Scalar = coefficient("slope in log N", symbol="a", sign="-")
    experts_slope: Scalar = coefficient(
        "slope in log Ê", symbol="b", sign="-", shift={"params": "coupling"}, log_base=10.0
    )
    coupling: Scalar = coefficient("change of the slope in log Ê with log N", symbol="c", sign="any")
    offset: Scalar = coefficient(
        "log10 of the loss at N = Ê = 1", symbol="d", sign="any", shift={"params": "params_slope"}, log_base=10.0
    )
    experts_start: Scalar = coefficient("effective count of one expert", symbol="E_start")
    experts_maximum: Scalar = coefficient("effective count of infinitely many experts", symbol="E_max")

    def saturated_experts(self, expert_expansion: Scalar) -> Any:
        """Return Ê, the saturated expert count."""
        return saturate(expert_expansion, self.experts_start, self.experts_maximum, 1)

    def __call__(self, design: Design) -> Any:
        params = jnp.log10(design.params_active)
        experts = jnp.log10(self.saturated_experts(design.expert_expansion))
        return 10 ** (
            self.params_slope * params + self.experts_slope * experts + self.coupling * params * experts + self.offset
        )

    def dense_equivalent(self, design: Design) -> Any:
        """Return the parameters of the dense model with the same loss."""
        return self.effective_params(design.params_active, design.expert_expansion)

    def effective_params(self, params_active: Scalar, expert_expansion: Scalar) -> Any:
        """Return the effective parameter count: the parameters of the dense model (E = 1) with the same loss."""

        def slope(experts: Scalar) -> Any:
            return self.params_slope + self.coupling * jnp.log10(experts)

        many, one = self.saturated_experts(expert_expansion), self.saturated_experts(1)
        return params_active ** (slope(many) / slope(one)) * (many / one) ** (self.experts_slope / slope(one))


_RUNS = {"params_active": (15e6, 1.3e9), "expert_expansion": (1, 512)}
_DATA = "MassiveText, 130B tokens"
_REMARK = "c and d have only three printed digits, so the RMS error in log10 L is 0.02 to 0.04 on the runs."

PUBLISHED = {
    "clark-2022-s-base": Published(
        law=Routed(
            params_slope=-0.082,
            experts_slope=-0.108,
            coupling=0.009,
            offset=1.104,
            experts_start=1.847,
            experts_maximum=314.478,
        ),
        source="Clark et al. 2022, Table 3, S-BASE",
        provenance="verified",
        data=_DATA,
        fitted=_RUNS,
        remark=_REMARK,
    ),
    "clark-2022-rl-r": Published(
        law=Routed(
            params_slope=-0.083,
            experts_slope=-0.126,
            coupling=0.012,
            offset=1.111,
            experts_start=1.880,
            experts_maximum=469.982,
        ),
        source="Clark et al. 2022, Table 3, RL-R",
        provenance="verified",
        data=_DATA,
        fitted=_RUNS,
        remark=_REMARK,
    ),
    "clark-2022-hash": Published(
        law=Routed(
            params_slope=-0.087,
            experts_slope=-0.136,
            coupling=0.012,
            offset=1.157,
            experts_start=4.175,
            experts_maximum=477.741,
        ),
        source="Clark et al. 2022, Table 3, HASH",
        provenance="verified",
        data=_DATA,
        fitted=_RUNS,
        remark=_REMARK,
    ),
}


def _effective(law: Routed, params_active: Scalar, expert_expansion: Scalar) -> dict[str, Any]:
    return {"effective_params": law.effective_params(params_active, expert_expansion)}


ENTRIES = (
    LawEntry(
        name="routed",
        law=Routed,
        aliases=("clark",),
        published=PUBLISHED,
        decides=(DecisionRule(("params_active", "expert_expansion"), {"effective_params": "N_eff"}, _effective),),
    ),
)
