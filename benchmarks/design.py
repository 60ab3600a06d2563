"""Compare ``moejax design`` with closed-form optima, and its multipliers with finite differences.

    python benchmarks/design.py

The closed forms come from papers; the optimizer does not use them. A multiplier is the price of a constraint by the
optimality conditions; the finite difference solves again with the bound moved by ±2 %. ``tests/design`` checks both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moejax.design.constraint import Constraint
from moejax.design.problem import of_sizes, optimize
from moejax.design.sensitivity import prices
from moejax.float64 import float64
from moejax.laws import PUBLISHED
from moejax.laws.active_params import Proportional
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.mixtures import five_factor, sparsity
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.laws.mixtures.effective_params import compute_optimal as effective_optimal
from moejax.laws.mixtures.expert_count import compute_optimal as experts_optimal
from moejax.laws.mixtures.five_factor import ZHAO_2025
from moejax.laws.mixtures.leverage import optimal_granularity
from moejax.laws.mixtures.sparsity import ABNAR_2025

LUDZIEJEWSKI = PUBLISHED["expert_count"]["ludziejewski-2025"].law
TIAN = PUBLISHED["leverage"]["tian-2025"].law
MUENNIGHOFF = PUBLISHED["data_constrained"]["muennighoff-2023"].law

TABLE_4 = {
    "gpt-oss-20b": (21e9, 0.4289),
    "Qwen3-30B-A3B": (30e9, 0.4004),
    "Hunyuan-A13B": (80e9, 0.3316),
    "GLM-4.5-Air": (106e9, 0.3141),
    "gpt-oss-120b": (117e9, 0.3082),
    "Qwen3-235B-A22B": (235e9, 0.2695),
    "GLM-4.5": (355e9, 0.2489),
    "Deepseek-V3.1": (671e9, 0.2202),
    "Kimi-K2": (1e12, 0.2040),
}
"""Zhao et al. (2025), Table 4: N and the printed theoretical optimum of N_a / N, at G = 7 and S = 0.31."""

Pairs = Mapping[str, tuple[float, Any]]
"""The optimizer's result and the closed form, by quantity."""


def held(name: str, value: float) -> Constraint:
    """Return a constraint that fixes a quantity."""
    return Constraint(name=name, low=value, high=value)


def chosen(law: Any, *constraints: Constraint, **options: Any) -> Mapping[str, float]:
    """Return the design that the optimizer chooses."""
    return optimize(of_sizes(law, constraints, **options)).values


def beside(found: Mapping[str, float], expected: Mapping[str, Any]) -> Pairs:
    """Return every quantity of a closed form with the optimizer's result."""
    return {name: (found[name], value) for name, value in expected.items()}


def hoffmann(flops: float) -> Pairs:
    """Hoffmann et al. (2022), Eq. 4."""
    return beside(chosen(HOFFMANN_2022, Constraint(name="flops", high=flops)), optimal_split(HOFFMANN_2022, flops))


def muennighoff() -> Pairs:
    """Muennighoff et al. (2023) without repeated tokens: Hoffmann's allocation with their constants."""
    found = chosen(MUENNIGHOFF, Constraint(name="flops", high=1e22), Constraint(name="unique_tokens", high=1e12))
    return beside(found, optimal_split(MUENNIGHOFF.unrepeated, 1e22))


def effective() -> Pairs:
    """Chapter 002: the allocation at a fixed expansion."""
    found = chosen(CHAPTER_002, Constraint(name="flops", high=3.4e24), held("expansion", 18.1))
    return beside(found, effective_optimal(CHAPTER_002, 3.4e24, 18.1).value)


def ludziejewski() -> Pairs:
    """Ludziejewski et al. (2025), Table 1: the allocation at eight experts."""
    found = chosen(LUDZIEJEWSKI, Constraint(name="flops", high=1e22), held("expert_expansion", 8.0))
    return beside(found, experts_optimal(LUDZIEJEWSKI, 1e22, 8.0).value)


def zhao() -> Pairs:
    """Zhao et al. (2025): G* and S* (Eqs. 12 and 13), N_a* and D* (Eq. 31), jointly."""
    found = chosen(ZHAO_2025, Constraint(name="flops", high=1e24), Constraint(name="params_total", high=1e12))
    experts, share = five_factor.best_active_experts(ZHAO_2025), five_factor.best_shared_share(ZHAO_2025)
    # Zhao et al. count C = N_a·D, without the factor 6.
    sizes = five_factor.optimal_active_at_compute(ZHAO_2025, 1e24 / 6, 1e12, experts, share).value
    names = ("params_active", "tokens")
    return beside(found, {"active_experts": experts, "shared_share": share} | {name: sizes[name] for name in names})


def table_4(model: str) -> Pairs:
    """Zhao et al. (2025), Table 4: N_a* / N."""
    total, experts, share = TABLE_4[model][0], 7.0, 0.31
    found = chosen(
        ZHAO_2025,
        *(held("params_total", total), held("active_experts", experts), held("shared_share", share)),
        held("tokens", 1e12),
    )
    expected = five_factor.optimal_active_share(ZHAO_2025, total, experts, share).value["active_share"]
    return {"active_share": (1 / found["expansion"], expected)}


def abnar(total: float, flops: float) -> Pairs:
    """Abnar et al. (2025): S*(N, C), as 1 - S."""
    found = chosen(ABNAR_2025, Constraint(name="flops", high=flops), held("params_total", total))
    with float64():
        best = sparsity.best_sparsity(ABNAR_2025, flops, total, Proportional())
    # The minimum is so flat that only the derivative locates it to 1e-6.
    return {"activation_ratio": (1 / found["expert_expansion"], 1 - float(best))}


def tian() -> Pairs:
    """Tian et al. (2025): the granularity with the largest leverage."""
    found = chosen(TIAN, held("expert_expansion", 32.0), Constraint(name="flops", high=1e22))
    return beside(found, {"granularity": optimal_granularity(TIAN, 1 / 32, 1e22).value["granularity"]})


CLOSED_FORMS: dict[str, Callable[[], Pairs]] = {
    "Hoffmann, N and D at 1e19 FLOPs": lambda: hoffmann(1e19),
    "Hoffmann, N and D at 5.76e23 FLOPs": lambda: hoffmann(5.76e23),
    "Muennighoff, N and D at 1e22 FLOPs, 1T unique tokens": muennighoff,
    "effective parameters, N_a and D at 3.4e24 FLOPs, expansion 18.1": effective,
    "Ludziejewski, N_a and D at 1e22 FLOPs, 8 experts": ludziejewski,
    "Zhao, G*, S*, N_a* and D* at 1e24 FLOPs, 1T parameters": zhao,
    **{f"Zhao, N_a*/N of {model} (Table 4)": (lambda m=model: table_4(m)) for model in TABLE_4},
    "Abnar, S* at 3B parameters, 1e20 FLOPs": lambda: abnar(3e9, 1e20),
    "Abnar, S* at 10B parameters, 3e20 FLOPs": lambda: abnar(1e10, 3e20),
    "Tian, best granularity at 1e22 FLOPs, 32 experts per active one": tian,
}
"""Functions that compare the optimizer with a closed form, by description."""

BUDGET, PARAMETERS = Constraint(name="flops", high=1e24), Constraint(name="params_total", high=1e12)
HOURS, MEMORY = Constraint(name="chip_hours", high=512 * 24 * 30.0), Constraint(name="memory_bytes", high=512 * 80e9)
PRICED: dict[str, tuple[Any, tuple[Constraint, ...]]] = {
    "Hoffmann": (HOFFMANN_2022, (BUDGET,)),
    "effective parameters": (CHAPTER_002, (BUDGET, PARAMETERS)),
    "Zhao": (ZHAO_2025, (BUDGET, PARAMETERS)),
    "Zhao, 512 chips": (ZHAO_2025, (HOURS, MEMORY)),
    "Abnar": (ABNAR_2025, (BUDGET, PARAMETERS)),
    "Ludziejewski": (LUDZIEJEWSKI, (BUDGET, PARAMETERS)),
    "Muennighoff": (MUENNIGHOFF, (BUDGET, Constraint(name="unique_tokens", high=1e11))),
}
"""Problems whose multipliers are checked, by description."""


def main() -> None:
    """Print both tables."""
    print("| closed form | the optimizer's relative distance |\n|---|---|")
    for name, made in CLOSED_FORMS.items():
        distances = [f"{what} {abs(found / float(form) - 1):.0e}" for what, (found, form) in made().items()]
        print(f"| {name} | {', '.join(distances)} |", flush=True)
    print(
        "\n| law | constraint | d loss / d log bound | by solving again | relative difference |\n|---|---|---|---|---|"
    )
    for name, (law, constraints) in PRICED.items():
        for price in prices(optimize(of_sizes(law, constraints))):
            off = abs(price.resolved / price.multiplier - 1)
            print(
                f"| {name} | {price.constraint} | {price.multiplier:.6f} | {price.resolved:.6f} | {off:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
