"""List published data mixtures by name, for ``data.named_mixture``, and interleave rows of several sets by weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moejax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PublishedMixture:
    """A published mixture of pretraining data."""

    weights: Mapping[str, float]
    """Weight of each part in the publication's unit, keyed by the name of the part's file or folder."""
    source: str
    remark: str = ""


MIXTURES: dict[str, PublishedMixture] = {
    "li-2026": PublishedMixture(
        weights={
            "WebData-en": 79.53,
            "Code": 4.62,
            "Wikipedia": 5.06,
            "Book": 5.18,
            "arXiv": 3.38,
            "StackExchange": 2.21,
        },
        source="ICLR 2026 explainer, Table 8 (the paper's Table 3), percent",
        remark="WebData-en is Common Crawl in English, Code is The Stack, and Book is open-source English books. "
        "Of Wikipedia's 5.06 %, English has 1.69, Chinese 0.13 and other languages 3.24.",
    ),
    "llama-1-by-li-2026": PublishedMixture(
        weights={
            "WebData-en": 82.00,
            "Code": 4.50,
            "Wikipedia": 4.50,
            "Book": 4.50,
            "arXiv": 1.06,
            "StackExchange": 2.00,
        },
        source="ICLR 2026 explainer, Table 8, column LLaMA-1, percent",
        remark="The column sums to 98.56: LLaMA-1 itself has 2.5 % of arXiv.",
    ),
    "tian-2025": PublishedMixture(
        weights={
            "Web": 46.0,
            "Books": 5.0,
            "Wiki": 4.0,
            "Academic": 6.0,
            "Code": 25.0,
            "News": 0.1,
            "Social": 1.9,
            "Domain": 1.0,
            "SFT": 4.0,
            "Math": 6.0,
            "Exam": 1.0,
        },
        source="Tian et al. 2025, Table 4, percent",
        remark="The corpus is not public. It has 2T tokens, mostly English and Chinese.",
    ),
}
"""Published mixtures by name. Weights are relative: a column that does not sum to 100 is rescaled."""


PERIOD = 10_000
"""Number of rows after which the pattern repeats. Weights are rounded to multiples of 1 / ``PERIOD``."""


def rows_of_each(weights: Sequence[float], rows: int) -> np.ndarray:
    """Return Int (sets): each set's number of rows among the first ``rows`` rows."""
    of_row, counts = pattern(weights)
    periods, rest = divmod(rows, PERIOD)
    return periods * counts + np.bincount(of_row[:rest], minlength=len(counts))


def pattern(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the set index of each row of one period, and the number of rows of each set.

    For a set with n rows per period, the ideal position of row j is (j + ½) / n, as a fraction of the period. Rows are
    sorted by these positions.

    Raises:
      UserError: a weight above 0 is so small that its set has no row in a period.
    """
    shares = np.array(weights, np.float64) / np.sum(weights)
    counts = np.floor(shares * PERIOD).astype(int)
    # Rows lost by rounding down are assigned to the sets with the largest remainders.
    counts[np.argsort(counts - shares * PERIOD, kind="stable")[: PERIOD - counts.sum()]] += 1
    lost = np.flatnonzero((counts == 0) & (shares > 0))
    if len(lost):
        raise UserError(
            f"data.mixture: the weight {weights[lost[0]]} gives less than one row in {PERIOD:,}; raise the weight, "
            "or remove that part."
        )
    wanted = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    which = np.repeat(np.arange(len(counts)), counts)
    return which[np.argsort(wanted, kind="stable")], counts
