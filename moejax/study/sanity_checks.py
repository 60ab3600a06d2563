"""Check that the trainings of a study learned: facts that hold in any correct sweep, checked on its own runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

FALLING_SHARE = 0.9


@dataclass(frozen=True)
class SanityCheck:
    """One fact, the observation, and whether the fact holds; None if no run can decide it."""

    fact: str
    found: str
    holds: bool | None


def sanity_checks(rows: Sequence[Mapping[str, Any]]) -> list[SanityCheck]:
    """Check that every loss is below the unigram entropy, and that losses fall with tokens."""
    entropy = rows[0].get("unigram_entropy", float("nan"))
    worst = max(rows, key=lambda row: row["loss"])
    below = sum(row["loss"] < entropy for row in rows)
    pairs = [
        (first["loss"], second["loss"])
        for first, second in pairwise(rows)
        if first["model"] == second["model"]
        and first["tokens"] < second["tokens"]
        # Repeated text may be memorized, so that the loss on other text increases.
        and not second["tokens"] > second.get("unique_tokens", float("inf"))
    ]
    falling = sum(second < first for first, second in pairs)
    learnt = [
        SanityCheck(
            f"every validation loss is below the corpus' unigram entropy, {entropy:.4f} nats/token",
            f"{below} of {len(rows)}; highest: {worst['loss']:.4f}, {worst['model']} at {worst['tokens']:,.0f} tokens",
            below == len(rows),
        )
    ]
    falls = [
        SanityCheck(
            f"within a model, loss falls with tokens in at least {FALLING_SHARE:.0%} of neighbouring pairs",
            f"{falling} of {len(pairs)}" if pairs else "no model has two budgets without repeated text",
            falling >= FALLING_SHARE * len(pairs) if pairs else None,
        )
    ]
    # A table that was trained elsewhere does not state the entropy of its text.
    return [*(learnt if entropy == entropy else []), *falls]
