"""The numbered figures of the five documents: by which named figure each is drawn, or why it is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moejax.errors import UserError
from moejax.wording import did_you_mean


@dataclass(frozen=True, kw_only=True)
class NumberedFigures:
    """The figures of one document."""

    drawn: Mapping[str, str]
    """Names of our figures by the document's number; what stands for an unnumbered picture has its name as number."""
    not_drawn: Mapping[str, str]
    """Why a figure is not drawn, in a sentence, by its number."""


def _own(paper: str, *numbers: object) -> dict[str, str]:
    """Figures that are named after the paper and their number."""
    return {str(number): f"{paper}-{number}" for number in numbers}


NUMBERED: Mapping[str, NumberedFigures] = {
    "zhao": NumberedFigures(drawn=_own("zhao", *range(1, 18)), not_drawn={}),
    "abnar": NumberedFigures(drawn=_own("abnar", *range(1, 16)), not_drawn={}),
    "chapter_002": NumberedFigures(drawn=_own("chapter-002", "widget", "grid", "runs", "domains"), not_drawn={}),
    "tian": NumberedFigures(
        drawn=_own("tian", "1a", "1b", *range(2, 18)),
        not_drawn={},
    ),
    "li": NumberedFigures(drawn=_own("li", "1a", 7), not_drawn={}),
}
"""By the names of ``moejax reproduce``. Of the explainer, the figures that its text numbers; the chapter numbers
none: its widget, and what its text tells of."""


def numbered(paper: str) -> NumberedFigures:
    """The figures of a document.

    Raises:
      UserError: no such document, with the nearest names.
    """
    asked = paper.strip().lower().replace("-", "_")
    if asked not in NUMBERED:
        raise UserError(f"There is no paper '{paper}' to draw; {did_you_mean(asked, NUMBERED)}")
    return NUMBERED[asked]
