"""Define a multiple-choice task on a study's own held-out text, without a harness or a network.

A document is a piece of the text. Its choices are its own next tokens and the next tokens of three other pieces. As in
the harness's tasks, the most likely choice is the answer. All choices have the same length, so that no length is
preferred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from moejax.errors import UserError
from moejax.evaluation.language_model import Likelihood
from moejax.say import CountCallback

NAME = "validation_choices"
CHOICES = 4
MOST = 500
"""Maximum number of documents."""
LONGEST_CONTEXT, LONGEST_CHOICE = 64, 16
"""Maximum number of tokens of a context (at most half of a row) and of a choice (at most an eighth of a row)."""

Document = tuple[list[int], list[list[int]]]
"""Tokens of a context and of its choices; the first choice is the correct one."""
Likelihoods = Callable[[list[tuple[list[int], list[int]]], CountCallback], list[Likelihood]]
"""Type of ``LanguageModel.log_likelihoods``."""


def documents(
    tokens: Int[np.ndarray, "rows length"],
    kept: Bool[np.ndarray, "rows targets"] | None = None,
    *,
    limit: int = 0,
) -> list[Document]:
    """Make documents from rows of text that are evenly spread over ``tokens``.

    Args:
      kept: mask of the targets that are text, for packed or padded rows. Rows with other targets are skipped.
      limit: maximum number of documents; 0 for ``MOST``.

    Raises:
      UserError: there are fewer usable rows than choices, or the rows are too short.
    """
    half = tokens.shape[1] // 2
    context, choice = min(LONGEST_CONTEXT, half), min(LONGEST_CHOICE, half // 4)
    if kept is not None:
        tokens = tokens[kept[:, : context + choice - 1].all(axis=1)]
    if len(tokens) < CHOICES or choice < 1:
        raise UserError(
            f"The task {NAME} needs at least {CHOICES} rows of held-out text with at least 8 tokens, but there are "
            f"{len(tokens)} rows of {tokens.shape[1]}; raise recipe.data.validation_tokens, or remove the task from "
            "downstream.tasks."
        )
    count = min(limit or MOST, len(tokens))
    places = np.linspace(0, len(tokens) - 1, count).astype(int)
    # The other pieces are far away in the text, so that they are seldom from the same document.
    step = max(1, len(tokens) // CHOICES)
    return [
        (
            tokens[place, :context].tolist(),
            [tokens[(place + n * step) % len(tokens), context : context + choice].tolist() for n in range(CHOICES)],
        )
        for place in places
    ]


def results(
    likelihoods: Likelihoods, asked: Sequence[Document], progress: CountCallback = lambda done, total: None
) -> Mapping[str, Any]:
    """Return the share of documents whose correct choice is the most likely, under the harness's names."""
    answered = likelihoods([(context, one) for context, choices in asked for one in choices], progress)
    logs = np.array([one.log for one in answered]).reshape(len(asked), CHOICES)
    # If another choice is equally likely, for example because its text is the same, the answer counts as wrong.
    right = (logs[:, :1] > logs[:, 1:]).all(axis=1)
    share = float(right.mean())
    error = math.sqrt(share * (1 - share) / max(len(asked) - 1, 1))
    return {"acc,none": share, "acc_stderr,none": error}
