"""Coefficients as a tabular of LaTeX, for a paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

GREEK = re.compile("alpha|beta|gamma|delta|epsilon|zeta|eta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega")


def tabular(about: str, level: float, rows: Iterable[tuple[str, float, tuple[float, float] | str]]) -> str:
    """Letters, values and intervals, or words in their place, for booktabs.

    Args:
      about: what the coefficients are of, for a comment above the tabular.
    """
    lines = [
        f"% {about}; needs \\usepackage{{booktabs}}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        rf"coefficient & value & {100 * level:g}\,\% interval \\",
        r"\midrule",
    ]
    for symbol, value, interval in rows:
        ends = interval if isinstance(interval, str) else rf"$[{_number(interval[0])},\ {_number(interval[1])}]$"
        lines.append(rf"${_symbol(symbol)}$ & ${_number(value)}$ & {ends} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _symbol(symbol: str) -> str:
    """A letter with what stands below it: ``alpha_N`` is ``\\alpha_{N}``."""
    letter, _, below = symbol.partition("_")
    letter, below = (rf"\{one}" if GREEK.fullmatch(one) else one for one in (letter, below))
    return f"{letter}_{{{below}}}" if below else letter


def _number(value: float) -> str:
    """Four digits: ``1.234 \\times 10^{5}``."""
    if math.isnan(value):
        return "-"
    return re.sub(r"e([+-])0*(\d+)", lambda e: rf" \times 10^{{{e[1].strip('+')}{e[2]}}}", f"{value:.4g}")
