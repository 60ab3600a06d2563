"""Collect the figures of the five documents, and with them every named figure."""

from __future__ import annotations

from collections.abc import Mapping

from moejax.errors import UserError
from moejax.papers.abnar.figures import downstream, flops, optima, surfaces, thought
from moejax.papers.chapter_002 import figures as chapter_002
from moejax.papers.documents import ABNAR, CHAPTER_002, LI, TIAN, ZHAO
from moejax.papers.li import figures as li
from moejax.papers.tian.figures import budgets, isoflop, leverage, training
from moejax.papers.zhao.figures import coefficients, compute, marginals, steps, variation
from moejax.report.plots import PLOTS
from moejax.wording import did_you_mean

MODULES = (
    *(coefficients, compute, marginals, steps, variation),
    *(downstream, flops, optima, surfaces, thought),
    *(budgets, isoflop, leverage, training),
    *(chapter_002, li),
)
"""Modules that register figures when they are imported."""
DOCUMENTS = {"zhao": ZHAO, "abnar": ABNAR, "tian": TIAN, "chapter_002": CHAPTER_002, "li": LI}
"""Documents by the names of ``moejax reproduce``."""

ALL = {plot.name: plot for document in DOCUMENTS.values() for plot in document.in_order().values()} | PLOTS
"""All figures by name."""


def numbered(paper: str) -> Mapping[str, str]:
    """Return the names of a document's figures by their numbers, or by words if the document does not number them.

    Raises:
      UserError: no such document; the message gives the nearest names.
    """
    asked = paper.strip().lower().replace("-", "_")
    if asked not in DOCUMENTS:
        raise UserError(f"There is no paper '{paper}' to draw; {did_you_mean(asked, DOCUMENTS)}")
    return {number: plot.name for number, plot in DOCUMENTS[asked].in_order().items()}
