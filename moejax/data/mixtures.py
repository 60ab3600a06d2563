"""List published data mixtures by name, with parts and weights, for ``data.named_mixture``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PublishedMixture:
    """A mixture of pretraining data as published."""

    weights: Mapping[str, float]
    """Weight of each part, in the unit of the source, by the name of its file or folder."""
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
        remark="WebData-en is Common Crawl in English, Code is The Stack, Wikipedia has 1.69 points of English, 0.13 "
        "of Chinese and 3.24 of others, Book is open-source English books.",
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
        source="ICLR 2026 explainer, Table 8, the column of LLaMA-1, percent",
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
        remark="Of a 2T-token corpus, mostly English and Chinese, that is not public.",
    ),
}
"""Published mixtures by name. Weights are relative: a column that does not sum to 100 is rescaled."""
