"""Register the documents' figures next to their code. An experiment is a figure with its law and table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.plots import Plot

Draw = TypeVar("Draw", bound=Callable[[FigureInputs], Figure])


@dataclass(frozen=True)
class PaperDocument:
    """A document and its figures, keyed by number."""

    name: str
    """Name in figures: ``zhao`` in ``zhao-1``."""
    section: str
    source: str
    law: str = ""
    """Name of the law that figures draw by default."""
    figures: dict[str, Plot] = field(default_factory=dict)

    def experiment(self, number: str, *, where: str = "", **options: Any) -> Callable[[Draw], Draw]:
        """Return a decorator that registers a function as the figure with this number.

        Args:
          number: the figure's number in the document, or a word for a figure without a number.
          where: place in the document; by default the figure with this number.
          options: fields of ``Plot``.
        """

        def register(draw: Draw) -> Draw:
            source = f"{self.source}, {where or f'Figure {number}'}"
            own: dict[str, Any] = {"law": self.law} | options
            self.figures[number] = Plot(
                name=f"{self.name}-{number}", section=self.section, source=source, draw=draw, **own
            )
            return draw

        return register

    def in_order(self) -> dict[str, Plot]:
        """Return the figures by number, in the document's order."""
        return dict(sorted(self.figures.items(), key=lambda item: int((re.findall(r"\d+", item[0]) or [0])[0])))


ZHAO = PaperDocument("zhao", "Zhao et al. (2025): five factors", "Zhao et al. 2025", "five_factor")
ABNAR = PaperDocument("abnar", "Abnar et al. (2025): sparsity", "Abnar et al. 2025", "sparsity")
TIAN = PaperDocument("tian", "Tian et al. (2025): efficiency leverage", "Tian et al. 2025")
CHAPTER_002 = PaperDocument("chapter-002", "Chapter 002: effective parameters", "chapter 002")
LI = PaperDocument("li", "ICLR 2026 explainer: resources", "ICLR 2026 explainer", "resources")
