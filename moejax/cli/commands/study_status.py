"""Implement ``moejax study status DIR`` and ``moejax study gather DIR``, on the results of engines in a study's
folder.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from moejax.cli.progress import clock
from moejax.errors import UserError
from moejax.report import render
from moejax.result import Column, Result, Table, Written, percent
from moejax.say import say
from moejax.storage import is_remote, open_storage
from moejax.study.downstream import write_scores
from moejax.study.run import fetch, read_study, write_table
from moejax.study.stages import later
from moejax.study.status import RunStatus, run_statuses, seconds_left
from moejax.study.study import Study
from moejax.train.directory.attempts import STATES
from moejax.wording import command, some

_SHOWN = 20


def run(arguments: argparse.Namespace) -> int:
    """Run the action of the first argument on the folder of the second."""
    action, url = arguments.action
    if action == "status":
        print_status(url, arguments.price, as_json=arguments.json)
    else:
        gather(url, arguments.out)
    return 0


def print_status(url: str, price: float | None, *, as_json: bool) -> None:
    """Print the progress of the study in a local or remote folder.

    Raises:
      UserError: the folder holds no study; or, after everything else is printed, files in it are damaged.
    """
    study = read_study(url)
    found = run_statuses(open_storage(url), study.trainings())
    render.show(summary(study, url, found, price), as_json=as_json)
    damaged = [problem for one in found for problem in one.damaged]
    if damaged:
        raise UserError(f"{len(damaged)} files of {url} are damaged. {some(damaged, most=3, between=' ')}")


def gather(url: str, out: Path | None) -> None:
    """Write the run table of a study's folder. Rows of a remote folder are first fetched into ``out``.

    Raises:
      UserError: there is no study, no row, or ``out`` belongs to another study.
    """
    study = read_study(url)
    if is_remote(url) and out is None:
        raise UserError(f"{url} is no folder of this machine; name one for its rows and table with --out DIR.")
    if out is not None and out != Path(url):
        fetch(url, out)
    folder = Path(out or url)
    path = write_table(study, folder)
    write_scores(study, folder)
    found = run_statuses(open_storage(folder), study.trainings())
    missing = [one.model for one in found if one.state != "done"]
    rows, runs = sum(len(one.rows) for one in found), sum(one.runs for one in found)
    say(f"{rows} of {runs} runs: {path}", file=sys.stdout)
    for problem in (problem for one in found for problem in one.damaged):
        say(f"! {problem}")
    if missing:
        say(f"not done: {some(missing)}; see {command('moejax', 'study', 'status', url)}")


def totals(found: list[RunStatus], price: float | None) -> dict[str, Any]:
    """Return the totals of a study's trainings."""
    hours = sum(one.device_seconds for one in found) / 3600
    return {
        "states": {state: sum(one.state == state for one in found) for state in STATES},
        "runs_done": sum(len(one.rows) for one in found),
        "runs": sum(one.runs for one in found),
        "share": sum(one.share * one.flops for one in found) / sum(one.flops for one in found),
        "device_hours": hours,
        "cost": None if price is None else hours * price,
        "seconds_left": seconds_left(found),
    }


def summary(study: Study, url: str, found: list[RunStatus], price: float | None) -> Result:
    """Return the trainings of a study, those that need attention first, and their totals."""
    counted = totals(found, price)
    # Trainings that need attention are never among the omitted rows.
    order = ("failed", "interrupted", "running", "waiting", "done")
    shown = sorted(found, key=lambda one: order.index(one.state))
    columns = (
        Column("model"),
        Column("state", words=True),
        Column("runs"),
        Column("of steps", percent(0)),
        # A non-finite loss is a known value and is shown.
        Column("loss"),
        Column("started"),
        Column("device-hours", ",.3g"),
        Column("left", clock),
        Column("where", words=True),
    )
    rows = [
        [
            one.model,
            one.state,
            f"{len(one.rows)}/{one.runs}",
            one.share,
            None if one.loss is None else Written(one.loss, f"{one.loss:.3f}"),
            one.attempts,
            one.device_seconds / 3600,
            one.seconds_left,
            one.where,
        ]
        for one in shown[:_SHOWN]
    ]
    rest = len(shown) - _SHOWN
    more = [f"and {rest} more, {shown[_SHOWN].state} and further (--json has all)"] if rest > 0 else []
    states = ", ".join(f"{count} {state}" for state, count in counted["states"].items() if count)
    spent = f"{counted['device_hours']:,.3g} device-hours" + (f", {counted['cost']:,.2f}" if price is not None else "")
    left = counted["seconds_left"]
    pace = f"; about {clock(left)} left at this pace" if left else ""
    return Result(
        tables=[Table(f"{study.name} in {url}", columns, rows, more)],
        notes=[
            *(f"{one.model} {one.state}: {one.why}" for one in shown if one.why),
            *([later(study)] if study.unknown_stages else []),
            f"{counted['runs_done']} of {counted['runs']} runs; models: {states}; spent {spent}{pace}",
        ],
        data={
            "study": study.name,
            "unknown_stages": list(study.unknown_stages),
            **counted,
            "models": [{**asdict(one), "rows": len(one.rows)} for one in found],
        },
    )
