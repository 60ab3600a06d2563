"""How a report writes what was found: sizes, losses, ranges, and the confirmations of an optimum."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moejax.result import NOT_DETERMINED, size

if TYPE_CHECKING:
    from moejax.interval import Interval
    from moejax.study.analysis import HeldOutCheck
    from moejax.study.compute_optimum import ComputeOptimum

VARIABLES = {"params_active": "active parameters", "tokens": "tokens", "loss": "loss, nats/token"}
"""What an optimum consists of, in words."""


def number(name: str, value: float | int, digits: int = 4) -> str:
    """A variable of an optimum: losses in decimals, sizes with a letter."""
    return f"{value:.{digits}f}" if name == "loss" and abs(value) < 100 else size(value, digits)


def interval(name: str, found: Interval) -> str:
    """The range of a resampled answer; a dash where the runs tell nothing of it."""
    if not math.isfinite(found.low) and not math.isfinite(found.high):
        return "–"
    low, high = number(name, found.low, 3), number(name, found.high, 3)
    return f"{low} – {high}"


def confirmations(decision: ComputeOptimum) -> list[tuple[str, ...]]:
    """Variable, closed form, what autodiff says there, numerical argmin, interval, verdict: a row per variable."""
    checked = decision.checked
    autodiff = {"params_active": f"slope {checked.residual:.1e}", "tokens": f"curvature {checked.curvature:.2e}"}
    return [
        (
            words,
            number(name, checked.value[name]),
            autodiff.get(name, ""),
            number(name, checked.numeric[name]),
            interval(name, decision.intervals[name]),
            NOT_DETERMINED if decision.intervals[name].uninformative else "",
        )
        for name, words in VARIABLES.items()
    ]


TENTH = math.log(1.1)
"""E-folds in a tenth more."""


def worth(decision: ComputeOptimum) -> list[str]:
    """What a tenth more of each limit is worth, in sentences."""
    words = {
        "flops": "A tenth more training FLOPs",
        "expansion": "A tenth more total parameters at as many active ones",
    }
    return [
        f"{words[name]} would change the least loss by {price * TENTH:+.2g} nats/token."
        for name, price in decision.prices.items()
    ]


def against_naive(check: HeldOutCheck) -> str:
    """How a law's held-out error compares with that of predicting no improvement."""
    if not check.naive_mae:
        return "there is no naive prediction to compare with"
    share = check.mae / check.naive_mae - 1
    word = "less" if share < 0 else "more"
    return f"{abs(share):.0%} {word} than the {check.naive_mae:.4f} of predicting no improvement"
