"""The log in Weights & Biases: a run for the trunk and each branch, all of one training in one group."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.stored import read_json, write_json
from moejax.train.loggers import Line, scalars
from moejax.wording import says

SHOWN = "wandb.json"


class WandbLogger:
    """Shows each step once: what was shown stays, since a training that goes on logs the same numbers again.

    ``wandb.json`` keeps the ids of the runs and the last step shown of each.
    """

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any]):
        self._folder, self._project, self._name, self._config = folder, project, name, dict(config)
        self._run: Any = None
        self._phase = ""
        path = folder / SHOWN
        self._shown: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "steps": {}}
        if path.exists():
            remedy = "remove it, and the log is shown anew under other ids"
            self._shown = read_json(path, {"id": str, "steps": dict[str, int]}, remedy=remedy)

    def begin(self, run: str, kept: Sequence[Line]) -> None:
        """Open the run, or go on with it, and show what was logged and not shown.

        Raises:
          UserError: W&B cannot be reached or is not set up.
        """
        import wandb  # type: ignore[import-not-found]

        self.close()
        self._phase = run
        # The id is kept before anything is shown under it.
        write_json(self._folder / SHOWN, self._shown)
        try:
            self._run = wandb.init(
                project=self._project,
                group=self._name,
                name=f"{self._name}/{run}",
                id=f"{self._shown['id']}-{run}",
                resume="allow",
                dir=str(self._folder),
                config=self._config,
            )
        except Exception as error:
            raise UserError(
                f"Weights & Biases cannot be written to ({says('wandb', error)}); run wandb login, set "
                f"WANDB_MODE=offline, or leave recipe.loggers.wandb empty."
            ) from error
        for line in kept:
            self.write(line)

    def write(self, line: Line) -> None:
        """Show a line, unless its step was."""
        if line["step"] <= self._shown["steps"].get(self._phase, 0):
            return
        self._run.log(scalars(line), step=line["step"])
        self._shown["steps"][self._phase] = line["step"]
        write_json(self._folder / SHOWN, self._shown)

    def close(self) -> None:
        """Finish the run, if one was begun."""
        if self._run is not None:
            self._run.finish()
            self._run = None
