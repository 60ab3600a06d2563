"""``moejax fit``: from a table of runs to a law's coefficients, their intervals, and what they cannot tell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NAME = "fit"
HELP = "fit a law to a table of runs"
EXAMPLE = """\
moejax fit runs.parquet --law effective_params --bootstrap 1000
moejax fit paper.csv --law chinchilla --map params_active=Na --map tokens='step * 520000' --where "seed == 42"
moejax fit runs.csv --law chinchilla --fix irreducible=1.6 --hold-out tokens --json
moejax fit runs.csv --law routed --hold-out router_type=S-Base --hold-out num_experts:256 --weight seeds
moejax fit proxies.csv --law effective_params --recipe launch-check --hold-out params_active:1e10 --pilot pilot.csv"""


RECIPES_HELP = "launch-check (may a large training rest on this law?), zhao, tian"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", type=Path, metavar="RUNS", help="CSV, Parquet or JSON-lines file, one row per run")
    parser.add_argument("--law", metavar="NAME", help="one of `moejax laws`; recipes of papers bring theirs")
    add_table_arguments(parser)
    fit = parser.add_argument_group("fitting")
    fit.add_argument("--penalty", default="huber", metavar="NAME", help="huber or squared (%(default)s)")
    fit.add_argument("--delta", type=float, metavar="NUMBER", help="where Huber's penalty becomes linear (0.001)")
    fit.add_argument("--residual", default="log", metavar="NAME", help="log or nats (%(default)s)")
    fit.add_argument("--fix", action="append", default=[], metavar="NAME=VALUE", help="give a coefficient")
    fit.add_argument("--starts", type=int, default=2048, metavar="COUNT", help="starting points (%(default)s)")
    fit.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="of starts and resamples (%(default)s)")
    trust = parser.add_argument_group("trusting")
    trust.add_argument("--bootstrap", type=int, default=0, metavar="COUNT", help="resamples for intervals")
    trust.add_argument("--by", default="group", metavar="WHAT", help="resample by group or by run (%(default)s)")
    trust.add_argument("--level", type=float, default=0.9, metavar="SHARE", help="of the intervals (%(default)s)")
    add_split_arguments(trust)
    trust.add_argument("--recipe", metavar="NAME", help="a whole procedure: " + RECIPES_HELP)
    trust.add_argument("--pilot", type=Path, metavar="RUNS", help="the large training's first losses, for launch-check")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write fit.json, summary.txt and predictions.csv")


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a table of runs is read with."""
    table = parser.add_argument_group("reading the table")
    table.add_argument(
        "--map", action="append", default=[], metavar="OURS=THEIRS", help="a column, or arithmetic on columns"
    )
    table.add_argument("--where", action="append", default=[], metavar="CONDITION", help="keep the rows that meet it")
    table.add_argument("--loss", default="loss", metavar="COLUMN", help="what is fitted (%(default)s)")
    table.add_argument("--group", metavar="COLUMN", help="rows that belong together (else: what shares its sizes)")
    table.add_argument("--weight", metavar="COLUMN", help="how often each row counts; 0 keeps it out")
    table.add_argument("--drop-invalid", action="store_true", help="leave out rows that cannot be, and say so")


def add_split_arguments(group: Any) -> None:
    """Add what says which runs are kept from a fit to test it."""
    group.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="COLUMN",
        help="test on the largest runs in it; COLUMN:LEAST on those from there on, COLUMN=VALUE on those that equal it",
    )
    group.add_argument("--each", metavar="COLUMN", help="hold out each of its values in turn; group: each architecture")
    group.add_argument("--folds", type=int, default=0, metavar="COUNT", help="cross-validate over groups")


def run(arguments: argparse.Namespace) -> int:
    """Read, fit, resample, hold out, print."""
    from moejax.cli.progress import progress
    from moejax.fit import bootstrap, holdout
    from moejax.fit.bootstrap import check_level
    from moejax.fit.fit_law import fit_law
    from moejax.fit.starts import Sobol
    from moejax.laws import LAWS
    from moejax.laws.door import law_name

    if arguments.recipe is not None:
        if arguments.recipe not in RECIPES:
            raise ValueError(f"There is no recipe {arguments.recipe}; known are {', '.join(RECIPES)}.")
        return RECIPES[arguments.recipe](arguments)
    law = LAWS[law_name(_law(arguments))]
    read = read_table(arguments, law.inputs)
    options: dict[str, Any] = {
        "penalty": _penalty(arguments),
        "starts": Sobol(_at_least_one(arguments.starts, "--starts"), arguments.seed),
        "fixed": _fixed(arguments.fix),
        "seed": arguments.seed,
    }
    splits = splits_of(read, arguments)
    level = check_level(arguments.level)
    stopped = False
    with progress() as show:
        result = fit_law(law, read.runs, progress=show, **options)
        text, plain = [result.summary()], result.to_json() | {"notes": list(read.notes)}
        # What is found is on disk before what takes long, may be stopped, or may not be possible.
        _write(arguments.out, text, plain, result, read)
        if held_out := holdout.hold_out(law, read.runs, splits, **options):
            text.append(holdout.table(held_out))
            plain["held_out"] = holdout.to_json(held_out)
            _write(arguments.out, text, plain, result, read)
        if arguments.bootstrap != 0:
            try:
                resampled = _resample(result, read, arguments, show)
                text.append(bootstrap.table(result, resampled, level))
                plain["bootstrap"] = bootstrap.to_json(result, resampled, level)
            except KeyboardInterrupt:
                if arguments.out:
                    raise
                stopped = True
    if stopped:
        print("\nStopped while resampling; with --out DIR the same command would go on from there.", file=sys.stderr)
    if arguments.out:
        _write(arguments.out, text, plain, result, read)
        print(f"Wrote fit.json, summary.txt and predictions.csv to {arguments.out}.", file=sys.stderr)
    print(json.dumps(plain, indent=2) if arguments.json else "\n\n".join(text))
    return STOPPED if stopped else 0


STOPPED = 130
"""Exit status after Ctrl-C, as that of every command."""


def _resample(result: Any, read: Any, arguments: argparse.Namespace, show: Any) -> Any:
    from moejax.fit.bootstrap import bootstrap

    return bootstrap(
        result,
        read.runs,
        arguments.bootstrap,
        by=arguments.by,
        seed=arguments.seed,
        progress=show,
        kept=_folder(arguments.out) / "bootstrap.npz" if arguments.out else None,
    )


def _law(arguments: argparse.Namespace) -> str:
    if arguments.law is None:
        raise ValueError("There is no law to fit; give --law NAME (`moejax laws` lists them), or a paper's --recipe.")
    return arguments.law


def _launch_check(arguments: argparse.Namespace) -> int:
    from moejax.cli.progress import progress
    from moejax.fit.column_split import split_by
    from moejax.fit.launch_check import launch_check
    from moejax.laws import LAWS
    from moejax.laws.door import law_name

    law = LAWS[law_name(_law(arguments))]
    read = read_table(arguments, law.inputs)
    pilot = None
    if arguments.pilot is not None:
        pilot = read_table(argparse.Namespace(**{**vars(arguments), "runs": arguments.pilot}), law.inputs).runs
    split = split_by(read, (arguments.hold_out or ["params_active"])[0])
    with progress() as show:
        found = launch_check(law, read.runs, split, pilot=pilot, seed=arguments.seed, progress=show)
    return _show(found, "launch_check", arguments)


def _zhao(arguments: argparse.Namespace) -> int:
    from moejax.cli.progress import progress
    from moejax.fit.column_split import split_by
    from moejax.fit.recipe_zhao import INPUTS, zhao
    from moejax.fit.starts import Sobol

    read = read_table(arguments, INPUTS)
    split = split_by(read, (arguments.hold_out or ["params_total"])[0])
    starts = Sobol(_at_least_one(arguments.starts, "--starts"), arguments.seed)
    with progress() as show:
        found = zhao(read.runs, split, resamples=arguments.bootstrap, starts=starts, seed=arguments.seed, progress=show)
    return _show(found, "zhao", arguments)


def _tian(arguments: argparse.Namespace) -> int:
    from moejax import run_table
    from moejax.cli.progress import progress
    from moejax.fit.recipe_tian import INPUTS, tian
    from moejax.fit.starts import Sobol

    read = read_table(arguments, INPUTS)
    tried = {
        name: run_table.numbers(read.frame[name], where=str(arguments.runs)).to_numpy(float)
        for name in ("learning_rate", "batch_tokens")
        if name in read.frame.columns
    }
    starts = Sobol(_at_least_one(arguments.starts, "--starts"), arguments.seed)
    with progress() as show:
        found = tian(read.runs, **tried, starts=starts, seed=arguments.seed, progress=show)
    return _show(found, "tian", arguments)


def _show(found: Any, name: str, arguments: argparse.Namespace) -> int:
    """Print what a recipe found, and write it where asked."""
    plain = json.dumps(found.to_json(), indent=2)
    if arguments.out:
        folder = _folder(arguments.out)
        try:
            (folder / f"{name}.json").write_text(plain + "\n")
            (folder / f"{name}.txt").write_text(found.text() + "\n")
        except OSError as error:
            raise ValueError(f"The results cannot be written to {folder} ({error}); choose another --out.") from error
    print(plain if arguments.json else found.text())
    return 0


RECIPES = {"launch-check": _launch_check, "zhao": _zhao, "tian": _tian}


def read_table(arguments: argparse.Namespace, inputs: Sequence[str]) -> Any:
    """The runs that the arguments describe; what must be known about them goes to stderr."""
    from moejax.fit.read_runs import read_runs

    read = read_runs(
        arguments.runs,
        inputs,
        mapping=dict(_pairs(arguments.map, "--map")),
        where=arguments.where,
        loss=arguments.loss,
        group=arguments.group,
        weight=arguments.weight,
        drop_invalid=arguments.drop_invalid,
    )
    for note in read.notes:
        print(note, file=sys.stderr)
    return read


def splits_of(read: Any, arguments: argparse.Namespace) -> list[Any]:
    """The splits that --hold-out, --each and --folds ask for."""
    from moejax.fit.column_split import each_value, split_by
    from moejax.fit.holdout import folds

    splits = [split_by(read, text) for text in arguments.hold_out]
    splits += each_value(read, arguments.each) if arguments.each else []
    return splits + (list(folds(read.runs, arguments.folds, seed=arguments.seed)) if arguments.folds else [])


def _pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise ValueError(f"{option} {text!r} is not of the form NAME=VALUE.")
        if name.strip() in dict(pairs):
            raise ValueError(f"{option} gives {name.strip()} twice; give it once.")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _fixed(texts: Sequence[str]) -> dict[str, float]:
    from moejax.quantities import parse

    return {name: parse(value) for name, value in _pairs(texts, "--fix")}


def _penalty(arguments: argparse.Namespace) -> Any:
    from moejax.fit.objective import PENALTIES, RESIDUALS

    for given, known, option in (
        (arguments.penalty, PENALTIES, "--penalty"),
        (arguments.residual, RESIDUALS, "--residual"),
    ):
        if given not in known:
            raise ValueError(f"{option} {given} is not known; choose {' or '.join(known)}.")
    options = {} if arguments.delta is None else {"delta": arguments.delta}
    if arguments.delta is not None and not arguments.delta > 0:
        raise ValueError(f"--delta is {arguments.delta}; it must be above 0.")
    try:
        return PENALTIES[arguments.penalty](residual=arguments.residual, **options)
    except TypeError as error:
        raise ValueError(f"--penalty {arguments.penalty} has no --delta; leave it out.") from error


def _at_least_one(count: int, option: str) -> int:
    if count < 1:
        raise ValueError(f"{option} is {count}; it must be at least 1.")
    return count


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"The results cannot be written to {folder} ({error}); choose another --out.") from error
    return folder


def _write(folder: Path | None, text: Sequence[str], plain: dict[str, Any], result: Any, read: Any) -> None:
    from moejax.fit.metrics import predict
    from moejax.folder import whole, write_json

    if folder is None:
        return
    predicted = predict(result.law, read.runs, result.output)
    rows = read.frame.assign(row=read.rows, predicted=predicted, residual=predicted - read.runs.loss)
    try:
        _folder(folder)
        with whole(folder / "summary.txt") as partial:
            partial.write_text("\n\n".join(text) + "\n")
        write_json(folder / "fit.json", plain)
        with whole(folder / "predictions.csv") as partial:
            rows.to_csv(partial, index=False)
    except OSError as error:
        raise ValueError(f"The results cannot be written to {folder} ({error}); choose another --out.") from error
