"""Write coefficients as a LaTeX tabular for a paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

GREEK = re.compile("alpha|beta|gamma|delta|epsilon|zeta|eta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|chi|psi|omega")


def tabular(about: str, level: float, rows: Iterable[tuple[str, float, tuple[float, float] | str]]) -> str:
    """Return a booktabs tabular of symbols, values and intervals (or a text instead of an interval).

    Args:
      about: the subject of the coefficients, for a comment above the tabular.
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
    """Return a symbol with its subscript: ``alpha_N`` is ``\\alpha_{N}``."""
    letter, _, below = symbol.partition("_")
    letter, below = (rf"\{one}" if GREEK.fullmatch(one) else one for one in (letter, below))
    return f"{letter}_{{{below}}}" if below else letter


def _number(value: float) -> str:
    """Return a number with four digits: ``1.234 \\times 10^{5}``."""
    if math.isnan(value):
        return "-"
    return re.sub(r"e([+-])0*(\d+)", lambda e: rf" \times 10^{{{e[1].strip('+')}{e[2]}}}", f"{value:.4g}")
