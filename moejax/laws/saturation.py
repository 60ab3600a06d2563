"""Define the saturating transform of Clark et al. (2022), which several laws share."""

from __future__ import annotations

from typing import Any


def saturate(value: Any, start: Any, maximum: Any, least: Any) -> Any:
    """Return x̂ with 1/x̂ = 1/(x - least + 1/(1/start - 1/maximum)) + 1/maximum.

    x̂ is ``start`` at x = ``least`` and approaches ``maximum``. Clark et al. (2022) use least = 1 expert; Tian et al.
    (2025), Eq. 1, use least = 0.
    """
    return 1 / (1 / (value - least + 1 / (1 / start - 1 / maximum)) + 1 / maximum)
