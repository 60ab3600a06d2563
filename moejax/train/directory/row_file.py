"""Read the rows of a training run: ``branch-TOKENS.json`` in its folder, one per budget, written atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.errors import UserError
from moejax.stored import foreign_json, parse_json, read_bytes
from moejax.train.batch_schedule import BatchSchedule, RampStage
from moejax.train.directory.identity import check_trained
from moejax.train.directory.metrics import branch_name

if TYPE_CHECKING:
    from moejax.train.training import Training


_ROW = {"model": str, "tokens": int, "loss": float, "fingerprint": str}


_REMEDY = "remove it to train that run again"


def row_file(budget_tokens: int) -> str:
    """Return the name of the file of a budget's row."""
    return f"{branch_name(budget_tokens)}.json"


def parse_row(text: str | bytes, path: object) -> dict[str, Any]:
    """Parse the content of a row's file; the result is keyed by column.

    Raises:
      Damaged: the content is invalid.
    """
    return parse_json(text, _ROW, path, remedy="its run is trained again")


def check_place(row: Mapping[str, Any], model: str, tokens: int, path: object) -> None:
    """Raise ``UserError`` if a row's model or budget does not match its file's path."""
    if (row["model"], row["tokens"]) != (model, tokens):
        raise UserError(
            f"{path} holds the row of {row['model']} at {row['tokens']:,} tokens instead of {model} at {tokens:,}. "
            "Move it back to its folder, or remove it to train that run again."
        )


def read_rows(folder: Path, training: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Return the rows of a training run's budgets; None for a missing row.

    Args:
      training: settings of the run, as returned by ``moejax.train.directory.status.read_training``.

    Raises:
      UserError: a file is invalid, or its row has another model, or other tokens than the whole steps of its budget.
    """
    recipe = training["recipe"]
    ramp = tuple(RampStage(**stage) for stage in recipe.get("batch_ramp") or ())
    batch, budgets = BatchSchedule(ramp, recipe["batch_tokens"]), recipe["budgets_tokens"]
    rows = [read_row(folder, budget) for budget in budgets]
    for row, budget in zip(rows, budgets, strict=True):
        if row is not None:
            check_place(row, training["name"], batch.tokens(batch.steps(budget)), folder / row_file(budget))
    return rows


def check_row(
    row: Mapping[str, Any],
    training: Training,
    budget_tokens: int,
    folder: object,
    history: Sequence[Mapping[str, Any]],
    path: object,
) -> None:
    """Raise if a row does not belong to ``training`` at this budget.

    Raises:
      UserError: the model, budget or recorded settings differ.
    """
    check_place(row, training.name, training.recipe.tokens(training.recipe.steps(budget_tokens)), path)
    config = row.get("config")
    if config is not None:
        config = foreign_json(str(config), f"The column config of {path}", shape=dict, remedy=_REMEDY)
    check_trained(folder, history, training, config, f"{path}")


def read_row(folder: Path, budget_tokens: int) -> dict[str, Any] | None:
    """Return a budget's row, keyed by column; None if its run is not finished.

    Raises:
      Damaged: the file is invalid.
    """
    path = folder / row_file(budget_tokens)
    return parse_row(read_bytes(path, remedy=_REMEDY), path) if path.exists() else None
