"""Map the numbered figures of the five documents to our named figures."""

from __future__ import annotations

from collections.abc import Mapping

from moejax.errors import UserError
from moejax.wording import did_you_mean


def _own(paper: str, *numbers: object) -> dict[str, str]:
    """Return the figures that are named after the paper and their number."""
    return {str(number): f"{paper}-{number}" for number in numbers}


NUMBERED: Mapping[str, Mapping[str, str]] = {
    "zhao": _own("zhao", *range(1, 18)),
    "abnar": _own("abnar", *range(1, 16)),
    "chapter_002": _own("chapter-002", "widget", "grid", "runs", "domains"),
    "tian": _own("tian", "1a", "1b", *range(2, 18)),
    "li": _own("li", "1a", 7),
}
"""Names of our figures by the document's number, by the names of ``moejax reproduce``.

The explainer has only the figures that its text numbers. The chapter numbers none, so its figures have our names.
"""


def numbered(paper: str) -> Mapping[str, str]:
    """Return the figures of a document by its numbers.

    Raises:
      UserError: no such document; the message gives the nearest names.
    """
    asked = paper.strip().lower().replace("-", "_")
    if asked not in NUMBERED:
        raise UserError(f"There is no paper '{paper}' to draw; {did_you_mean(asked, NUMBERED)}")
    return NUMBERED[asked]
