"""Report the state of a training run or a study from its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from moejax.cli.options import Command, argument, option
from moejax.errors import UserError
from moejax.quantities import format_bytes
from moejax.say import say
from moejax.wording import counted, some

EXAMPLE = """\
  moejax status runs/tiny
  moejax status runs/tiny --layers              # the routing of every layer
  moejax status runs/tiny --verify              # every file of every checkpoint against its hash
  moejax status runs/quickstart --json"""


@dataclass(frozen=True, kw_only=True)
class StatusCommand(Command, name="status"):
    """Report the state of a training run, active or not, or of every run of a study or of vmapped runs, from the files
    in its folder.
    """

    folder: str = argument("folder of a training run or a study", metavar="DIR")
    layers: bool = option(False, "also show the routing of each MoE layer in a table")
    verify: bool = option(False, "also read every checkpoint and compare it with its hashes")

    def run(self) -> None:
        from moejax.report import render
        from moejax.report.trainings import routing_tables, study_trainings, training_status
        from moejax.storage import is_remote
        from moejax.train.directory.status import has_several_runs, read_statuses

        if is_remote(self.folder):
            raise UserError(
                f"{self.folder} is in an object store, but moejax status reads a local folder: mount the bucket "
                f"(docs/launch.md), or for a study run moejax study status {self.folder}."
            )
        folder = Path(self.folder)
        statuses = read_statuses(folder)
        result = study_trainings(statuses) if has_several_runs(folder) else training_status(statuses[0])
        layers = [
            table
            for status in statuses
            if self.layers
            for table in routing_tables(status.layers, f"{status.name}: the last logged batch")
        ]
        render.show(replace(result, tables=[*result.tables, *layers]), as_json=self.json)
        if self.verify:
            _verify(folder, [Path(status.folder) for status in statuses])


def _verify(folder: Path, folders: list[Path]) -> None:
    from moejax.train.directory.manifest import verify

    every = [verify(one) for one in folders]
    damaged = [place_and_error for one in every for place_and_error in one.damaged]
    if damaged:
        raise UserError(
            f"{counted(len(damaged), 'checkpoint')} damaged: "
            f"{some([f'{place}: {wrong}' for place, wrong in damaged], most=3, between='; ')}. Move "
            f"{some([str(place) for place, _ in damaged], most=3)} away; the same command then continues from the "
            f"checkpoint before {'it' if len(damaged) == 1 else 'them'}."
        )
    unreadable = [text for one in every for text in one.unreadable]
    if unreadable:
        raise UserError(
            f"{len(unreadable)} checkpoints cannot be read now: {some(unreadable, most=3, between='; ')}. They may "
            "be intact; run the command again when the disk or file system responds."
        )
    if not any(one.checkpoints for one in every):
        raise UserError(
            f"There is nothing to verify: {some([str(one) for one in folders], most=3) or folder} "
            f"{'hold' if len(folders) > 1 else 'holds'} no checkpoint."
        )
    count, without = sum(one.checkpoints for one in every), sum(one.without_hash for one in every)
    size = format_bytes(sum(one.bytes for one in every))
    missing = f"; {without:,} files have no recorded hash, so their content was not compared" if without else ""
    say(f"{count:,} checkpoints: {size} match their hashes{missing}")
