"""Check ``--exportable hf`` before training: ``moejax convert --to hf`` must be able to write the model."""

from __future__ import annotations

from collections.abc import Mapping

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.huggingface.conversion import plan_export
from moejax.wording import told

FORMAT = "hf"


def check_exportable(asked: str | None, architectures: Mapping[str, Architecture]) -> None:
    """Raise ``UserError`` if a model, given by its name, cannot be exported as requested; do nothing without a
    request.
    """
    if asked is None:
        return

    kind, _, family = asked.partition(":")
    if kind != FORMAT:
        raise UserError(f"--exportable {asked} is not known; write --exportable {FORMAT}, or {FORMAT}:FAMILY.")
    for name, architecture in architectures.items():
        try:
            plan_export(architecture, family or None)
        except ValueError as error:
            raise UserError(
                f"{name} could not be exported to Hugging Face (--exportable {asked}); change its fields, such as "
                f"--config.architecture.FIELD=VALUE, or leave --exportable away. What is in the way: {told(error)}"
            ) from error
