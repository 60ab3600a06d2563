"""Implement ``moejax launch``: submit the trainings of a config or study to Slurm, Google Kubernetes Engine or
SkyPilot.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moejax.cli.commands.exportable import check_exportable
from moejax.cli.commands.launch_engines import ENGINES
from moejax.cli.commands.load_study import load_study
from moejax.cli.progress import progress_display
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.say import say
from moejax.storage import open_storage
from moejax.study import analysis
from moejax.study.executor import Engine, Executor, Task
from moejax.study.outcomes import try_outcomes
from moejax.study.run import check_owner, materialise_at, train_study
from moejax.study.stages import each_stage, known_stages, later
from moejax.study.status import run_statuses
from moejax.study.storage import launched, write_launch
from moejax.study.study import Study
from moejax.wording import command, counted, some, told


def run(arguments: argparse.Namespace) -> int:
    """Print or submit."""
    study, out = load_study(arguments)
    _refuse_control_characters([*arguments.command_line, out, study.name, *study.models])
    study.check()
    study = _with_stages(arguments, study, out)
    check_exportable(arguments.exportable, study.models)
    if said := try_outcomes(study, lambda one: check_exportable(arguments.exportable, one.models)).said:
        _say(said)
    engine, tasks = ENGINES[arguments.engine](arguments, study, out)
    for warning in analysis.warnings(study):
        _say(warning)
    if arguments.submit:
        engine.check()
        study.check_data()
    else:
        try:
            study.check_data()
        except UserError as error:
            _say(f"what is printed trains nothing yet, and --submit refuses it: {told(error)}")
    tasks = _not_done(arguments, study, out, tasks)
    if arguments.json:
        print(json_text([_as_data(task) for task in tasks]))
    if not tasks and not arguments.json:
        say(
            f"Nothing is left to hand over of {study.name}: {command('moejax', 'study', 'status', out)}, "
            f"{command('moejax', 'study', 'gather', out)}.",
            file=sys.stdout,
        )
    if study.unknown_stages:
        again = "" if arguments.submit and _waits(arguments) else " Launch again when the trainings before have ended."
        _say(f"{later(study)}{again}")
    if not tasks:
        return 0
    if not arguments.submit:
        if not arguments.json:
            print(engine.describe(tasks))
        say("", f"moejax: {counted(len(tasks), 'training')}; nothing was submitted (--submit).")
        return 0
    return _submit(arguments, study, out, engine, tasks)


def _with_stages(arguments: argparse.Namespace, study: Study, out: str) -> Study:
    """Return the study with the stages that can be made from its folder. Without ``--submit``, an unreachable folder is
    reported and the study returned unchanged.
    """
    if not study.stages:
        return study
    try:
        check_owner(study, out)
        return known_stages(study, open_storage(out))
    except UserError as error:
        if arguments.submit:
            raise
        _say(told(error))
        return study


def _as_data(task: Task) -> dict[str, Any]:
    return {"model": task.name, "command": ["moejax", *task.words], "resources": dataclasses.asdict(task.resources)}


def _submit(arguments: argparse.Namespace, study: Study, out: str, engine: Engine, tasks: Sequence[Task]) -> int:
    if _waits(arguments) and isinstance(engine, Executor):
        with progress_display() as update:
            table = train_study(study, Path(out), executor=engine, tasks=tasks, update=update, log=_say)
            # A study with stages is launched stage by stage.
            for known in each_stage(study, Path(out), _say) if study.unknown_stages else ():
                engine, tasks = ENGINES[arguments.engine](arguments, known, out)
                tasks = _not_done(arguments, known, out, tasks)
                assert isinstance(engine, Executor)
                table = train_study(known, Path(out), executor=engine, tasks=tasks, update=update, log=_say)
        say(table, file=sys.stderr if arguments.json else sys.stdout)
        return 0
    materialise_at(study, out, getattr(engine, "mount", None))
    ids = engine.submit(tasks)
    if arguments.engine != "slurm":
        write_launch(out, arguments.engine, ids)
    _say(f"{counted(len(ids), 'training')} handed over: {some(list(ids.values()))}")
    _say(f"how far they are: {command('moejax', 'study', 'status', out)}")
    return 0


def _waits(arguments: argparse.Namespace) -> bool:
    """Return whether to wait for the end of all trainings, those of later stages included; only Slurm supports this."""
    return getattr(arguments, "wait", False)


def _not_done(arguments: argparse.Namespace, study: Study, out: str, tasks: Sequence[Task]) -> list[Task]:
    """Return the trainings that are not done; all if the folder is unreachable and nothing is submitted."""
    try:
        storage = open_storage(out)
    except ValueError as error:
        if arguments.submit:
            raise
        _say(f"what is done is not known, so all is printed: {told(error)}")
        return list(tasks)
    check_owner(study, out)
    found = {one.model: one for one in run_statuses(storage, study.trainings())}
    for one in found.values():
        if one.state != "done" and one.why:
            _say(f"{one.model}, which goes on: {one.why}")
    left = [task for task in tasks if found[task.name].state != "done"]
    if not arguments.submit or arguments.engine != "sky" or arguments.again:
        return left
    # SkyPilot would accept the same job twice.
    before = launched(out, "sky")
    busy = [task for task in left if task.name in before and found[task.name].state in ("waiting", "running")]
    if busy:
        names = some([task.name for task in busy])
        _say(f"left alone, since SkyPilot has them (sky jobs queue; --again hands them over again): {names}")
    return [task for task in left if task not in busy]


def _say(text: Any) -> None:
    say(f"moejax: {text}")


def _refuse_control_characters(texts: Sequence[str]) -> None:
    """Raise ``UserError`` for control characters. A line break would start a new line in a script or manifest, such as
    a further ``sbatch`` option.
    """
    for text in texts:
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
            raise UserError(f"{text!r} has a line break or another control character; give it without.")
