"""Options shared by several commands, and functions that convert them to arguments of the packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from moejax.cli.options import Command, option
from moejax.errors import UserError
from moejax.folder import fit_in
from moejax.quantities import parse, parse_whole_number
from moejax.ranges import RESAMPLES, FormulaLength, Level, NumberRange, PositiveShare, Quantity, whole
from moejax.run_sources.source import source
from moejax.wording import did_you_mean

if TYPE_CHECKING:
    from moejax.architecture import Architecture
    from moejax.fit.search.starts import Starts
    from moejax.fit.selection.holdout import Split
    from moejax.fit.tables.read_runs import ReadRuns
    from moejax.run_sources.column_mapping import ColumnMapping

T = TypeVar("T")

Seed = Annotated[int, whole(0, 2**31 - 1)]
Length = FormulaLength
SEQUENCE_LENGTH = 4096
"""Sequence length without a config, in tokens."""
Workers = Annotated[int, whole(1, 1_024)]
"""Number of processes, or of CPU devices, on this machine."""
Positive = Quantity
Share = PositiveShare


@dataclass(frozen=True)
class _OrNone(NumberRange):
    def __contains__(self, value: object) -> bool:
        return value == 0 or super().__contains__(value)

    def __str__(self) -> str:
        return f"{super().__str__()}, or 0 for none"


Resamples = Annotated[int, _OrNone(RESAMPLES.low, RESAMPLES.high, whole=True)]

RUNS = (
    "CSV, Parquet or JSON-lines file, one row per run; a study's folder; or a tracker's runs: a folder or database of "
    "MLflow, W&B or TensorBoard, mlflow:URL, wandb:ENTITY/PROJECT, hf:OWNER/NAME"
)
LAW = "a law or paper name (`moejax laws` lists them), or the path of a fit.json or of the folder that contains it"
TABLE, FORMULA, FITTING = (
    "reading the table",
    "a law by formula: names that are not columns are coefficients",
    "fitting",
)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` texts, keyed by name.

    Raises:
      UserError: a text is not of this form, or a name is given twice.
    """
    values: dict[str, str] = {}
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError(f"{option} {text!r} is not UTF-8; write it in UTF-8, as tables are.")
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and name and value):
            raise UserError(f"{option} {text!r} has no name and value; write {option} NAME=VALUE.")
        if name in values:
            raise UserError(f"{option} gives {name} twice; give it once.")
        values[name] = value
    return values


def numbers(texts: Sequence[str], option: str) -> dict[str, float]:
    """Parse ``NAME=VALUE`` texts, and return the numeric values, keyed by name."""
    return {name: parse(value) for name, value in pairs(texts, option).items()}


def split_names(text: str | None, option: str) -> list[str]:
    """Split a comma-separated text into names, without duplicates."""
    names = list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))
    if text is not None and not names:
        raise UserError(f"{option} {text!r} contains no name; give column names, or leave it out.")
    return names


def law_or_fit(text: str) -> str:
    """Parse a law's name, or the file or folder of a fit.

    A law's name takes precedence over a folder with the same name; write the folder with a slash.
    """
    fit = fit_in(Path(text))
    return text if fit == Path(text) or ("/" not in text and _is_law(text)) else str(fit)


def _is_law(text: str) -> bool:
    # Importing laws imports JAX, which takes time. This is only needed if a folder contains a fit.
    from moejax.laws import law_name

    try:
        return text == "all" or bool(law_name(text))
    except UserError:
        return False


def is_fit(law: str) -> bool:
    """Return whether ``--law`` names the file of a fit."""
    return law.endswith(".json")


def named_law(law: str, constants: str | None) -> tuple[str, Any, Any]:
    """Return the label of a law or fit, the law, and the published constants or the fit."""
    # Reading a fit imports the fitting code, which published laws do not need.
    if is_fit(law):
        from moejax.fit.fit_result import load_of_runs
        from moejax.say import say

        fit = load_of_runs(law)
        for sentence in (*fit.warnings, *fit.dropped):
            say(f"! {sentence}")
        return type(fit.law).__name__, fit.law, fit
    from moejax.laws.predict import law_and_constants, published

    name, chosen = law_and_constants(law, constants)
    known = published(name, chosen)
    return f"{name} ({known.source})", known.law, known


@dataclass(frozen=True, kw_only=True)
class TableOptions(Command):
    """Options for reading a table of runs."""

    map: tuple[str, ...] = option(
        (),
        "take moejax's column OURS from the table's column THEIRS, or from arithmetic on the table's columns",
        metavar="OURS=THEIRS",
        group=TABLE,
    )
    where: tuple[str, ...] = option(
        (),
        "keep the rows that satisfy the condition, such as 'seed == 42 and tokens > 1B' (syntax: docs/run_tables.md)",
        metavar="CONDITION",
        group=TABLE,
    )
    loss: str = option("loss", "column of the loss", metavar="COLUMN", group=TABLE)
    group: str | None = option(
        None,
        "column with the group of each row (default: rows with equal sizes form a group)",
        metavar="COLUMN",
        group=TABLE,
    )
    weight: str | None = option(
        None,
        "column of each row's weight; rows of weight 0 are predicted, but not fitted",
        metavar="COLUMN",
        group=TABLE,
    )
    drop_invalid: bool = option(False, "leave out rows with impossible values, and report them", group=TABLE)
    drop_duplicates: bool = option(False, "leave out exact duplicates of rows, and report them", group=TABLE)
    best_by: str | None = option(
        None,
        "swept columns, such as learning_rate,batch_tokens: keep the best of the rows that differ only in these "
        "columns",
        metavar="COLUMNS",
        group=TABLE,
    )
    smooth: bool = option(
        False,
        "with --best-by: use the minimum of a quadratic through the runs near the best run, and the minimum's "
        "standard error",
        group=TABLE,
    )
    trust_units: bool = option(False, "accept sizes, tokens and FLOPs whose units look wrong", group=TABLE)
    save_mapping: str | None = option(
        None,
        "save --map, --group and --trust-units as NAME.toml next to the table NAME.csv, where every command finds "
        "them; FILE is optional",
        metavar="FILE",
        bare="",
        group=TABLE,
    )

    def mapping(self, runs: Path | str | None) -> ColumnMapping:
        """Return the column mapping of a table: the saved mapping next to it, updated by the options."""
        from moejax.run_sources.column_mapping import column_mapping

        return column_mapping(runs, pairs(self.map, "--map"), trust_units=self.trust_units, group=self.group)

    def keep_mapping(self, runs: Path | str) -> None:
        """Save the mapping of a table if ``--save-mapping`` is given, and print the path.

        Raises:
          UserError: ``--save-mapping`` names an unexpected file, or ``column_mapping.save_mapping`` fails.
        """
        from moejax.run_sources.column_mapping import save_mapping, saved_mapping
        from moejax.say import say

        if self.save_mapping is None:
            return
        file = saved_mapping(runs).file
        if self.save_mapping and file and file.absolute() != Path(self.save_mapping).absolute():
            raise UserError(
                f"--save-mapping is {self.save_mapping}, but commands look for the mapping of {runs} in {file}; "
                f"give that name, or --save-mapping without a name."
            )
        columns = self.mapping(runs)
        trusted = bool(columns.trusted_by)
        if file := save_mapping(runs, columns.expressions, trust_units=trusted, group=columns.group):
            say(f"Saved the mapping of {runs} as {file}; commands that read the table use it without these options.")

    def read(
        self,
        runs: Path | str,
        law: type | Sequence[str],
        also_told_apart_by: Sequence[str] = (),
        *,
        usual: Mapping[str, Any] | None = None,
        quiet: bool = False,
    ) -> ReadRuns:
        """Return the runs of a table for a law or columns, and print notes about them.

        Args:
          usual: default options of ``read_runs``, such as those of a fit (``FitResult.reading``). Options given on the
            command line take precedence.
          quiet: neither print notes nor save the mapping.
        """
        from moejax.fit.tables.read_runs import read_runs
        from moejax.say import say_once

        asked = {
            "mapping": pairs(self.map, "--map"),
            "where": self.where,
            "loss": "" if self.loss == "loss" else self.loss,
            "group": self.group,
            "weight": self.weight,
            "drop_invalid": self.drop_invalid,
            "drop_duplicates": self.drop_duplicates,
            "best_by": split_names(self.best_by, "--best-by"),
            "smooth": self.smooth,
            "trust_units": self.trust_units,
        }
        options = {**(usual or {}), **{name: value for name, value in asked.items() if value}}
        read = read_runs(runs, law, also_told_apart_by=also_told_apart_by, **options)
        if not quiet:
            self.keep_mapping(runs)
            say_once(*read.notes)
        return read


@dataclass(frozen=True, kw_only=True)
class SignOptions(TableOptions):
    """Options for the signs of a formula's coefficients."""

    positive: str = option("", "coefficients above 0, separated by commas", metavar="NAMES", group=FORMULA)
    negative: str = option("", "coefficients below 0, separated by commas", metavar="NAMES", group=FORMULA)
    either: str = option("", "coefficients that may have any sign, separated by commas", metavar="NAMES", group=FORMULA)

    def formulas(self, runs: Path | str, texts: Sequence[str], budget: str = "") -> dict[str, type]:
        """Return law classes for formulas over a table's columns, keyed by formula. Signs apply to all formulas.

        Raises:
          UserError: a formula does not match the columns, or a sign is declared for an unknown coefficient.
        """
        # These imports read tables and laws, which the other options do not need.
        from moejax import run_table
        from moejax.fit.tables.column_names import law_of_formula
        from moejax.laws.formula import parse as parse_formula

        signs: dict[str, str] = {}
        for names, sign in ((self.positive, "+"), (self.negative, "-"), (self.either, "any")):
            for name in filter(None, map(str.strip, names.split(","))):
                if signs.setdefault(name, sign) != sign:
                    raise UserError(f"{name} is declared with two signs; give it to only one of the options.")
        if not texts and signs:
            raise UserError(
                f"The law determines the sign of {', '.join(signs)}; signs can only be declared with --form. Leave "
                "them out, or give a formula with --form."
            )
        if not texts:
            return {}
        trees = [parse_formula(text) for text in texts]
        if twice := [text for number, text in enumerate(texts) if trees[number] in trees[:number]]:
            raise UserError(f"--form {twice[0]!r} is given twice; give each formula once.")
        frame = run_table.read_as_it_is(runs)
        how: Mapping[str, Any] = {"mapping": self.mapping(runs).expressions, "loss": self.loss}
        of_each = {text: dict(law_of_formula(text, frame, **how).formula.signs) for text in texts}
        known = [name for each in of_each.values() for name in each]
        if unknown := [name for name in signs if name not in known]:
            raise UserError(f"No formula has a coefficient {unknown[0]}; {did_you_mean(unknown[0], known)}")
        own = {text: {name: sign for name, sign in signs.items() if name in each} for text, each in of_each.items()}
        return {text: law_of_formula(text, frame, **how, signs=own[text], budget=budget) for text in texts}


FORM = (
    "target = formula, with + - * / ^, exp, log, log2, log10, sqrt, sigmoid, min and max of columns and coefficients: "
    "'loss = E + A/N^alpha + B/D^beta'"
)


@dataclass(frozen=True, kw_only=True)
class LawOptions(SignOptions):
    """The law to fit, named or defined by a formula."""

    law: str | None = option(None, "a law of `moejax laws`", metavar="NAME", excludes=("form",))
    form: str | None = option(None, FORM, metavar="FORMULA", group=FORMULA)
    budget: str | None = option(
        None,
        "cost as a function of two columns, such as 'C = 6*N*D'; --decide flops=1e24 then minimizes the target at "
        "this cost",
        metavar="FORMULA",
        group=FORMULA,
        needs=("form",),
    )

    def law_for(self, runs: Path | str) -> type:
        """Return the law that ``--law`` names, or ``--form`` defines on a table's columns."""
        from moejax.laws import LAWS, law_name

        if self.budget == "":
            raise UserError("--budget is empty; give a formula, such as 'C = 6*N*D', or leave it out.")
        if self.form is not None:
            return self.formulas(runs, [self.form], self.budget or "")[self.form]
        self.formulas(runs, [])
        assert self.law is not None, "the command requires one"
        return LAWS[law_name(self.law)]


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions(Command):
    """Options of the objective of a fit."""

    penalty: str = option(
        "huber", "loss function of the residuals: huber or squared (not a regularizer)", metavar="NAME", group=FITTING
    )
    delta: float | None = option(
        None, "residual at which the Huber loss becomes linear (default: 0.001)", metavar="NUMBER", group=FITTING
    )
    residual: str = option(
        "log", "residuals of the logarithm of the loss (log) or of the loss (nats)", metavar="NAME", group=FITTING
    )
    fix: tuple[str, ...] = option((), "hold a coefficient at a value", metavar="NAME=VALUE", group=FITTING)
    seed: Seed = option(0, "seed of initial guesses and resamples", metavar="NUMBER", group=FITTING)

    @property
    def fixed(self) -> dict[str, float]:
        """Values of the coefficients that ``--fix`` holds fixed, keyed by name."""
        return numbers(self.fix, "--fix")

    def objective(self) -> Any:
        """Return the loss function of the residuals."""
        from moejax.fit.search.objective import named_penalty

        return named_penalty(self.penalty, self.residual, self.delta)


MOST_STARTS = 1_000_000
"""Maximum number of initial guesses of a search."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ObjectiveOptions):
    """Options of a fit's objective and search."""

    starts: str | None = option(
        None,
        "number of initial guesses (default: 2048), or a paper's grid: hoffmann (4,500 guesses), abnar (437,400)",
        metavar="COUNT|NAME",
        group=FITTING,
    )
    every_start: bool = option(False, "optimize from every initial guess, like the papers (slow)", group=FITTING)

    def initial_guesses(self, usual: str = "2048") -> Starts:
        """Return the initial guesses: points scaled by the data, or a published grid. ``usual`` is the default of the
        option.
        """
        from moejax.fit.search.starts import GRIDS, Sobol

        text = usual if self.starts is None else self.starts
        if text in GRIDS:
            return GRIDS[text]
        try:
            count = parse_whole_number(text)
        except ValueError:
            known = ", ".join(GRIDS)
            raise UserError(
                f"--starts {text} is neither a number nor a grid; give a number of initial guesses, or "
                f"one of the grids {known}."
            ) from None
        if not 1 <= count <= MOST_STARTS:
            raise UserError(f"--starts is {text}; give a whole number from 1 to {MOST_STARTS:,}.")
        return Sobol(count, self.seed)

    def how(self) -> dict[str, Any]:
        """Return the arguments of ``fit_law`` for these options, keyed by argument name, except fixed coefficients. An
        option that is not given is omitted if ``fit_law`` has a default.
        """
        options: dict[str, Any] = {"penalty": self.objective(), "seed": self.seed}
        if self.starts is not None:
            options["starts"] = self.initial_guesses()
        if self.every_start:
            from moejax.fit.search.fit_law import EVERY_START

            options["search"] = EVERY_START
        return options


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Command):
    """Options that select held-out runs."""

    hold_out: tuple[str, ...] = option(
        (),
        "runs to hold out: COLUMN for the largest fifth of its values, COLUMN:LEAST for values of at least LEAST, "
        "COLUMN=VALUE for one value",
        metavar="COLUMN",
        group="trusting",
    )
    each: str | None = option(
        None,
        "hold out each value of COLUMN in turn; `group` holds out each architecture",
        metavar="COLUMN",
        group="trusting",
    )
    folds: Annotated[int, whole(0, 10_000)] = option(
        0, "number of folds for cross-validation over groups", metavar="COUNT", group="trusting"
    )

    def splits(self, read: ReadRuns, seed: int) -> list[Split]:
        """Return the train-test splits of the runs."""
        from moejax.fit.selection.holdout import each_value, folds, split_by

        splits = [split_by(read, text) for text in self.hold_out]
        splits += each_value(read, self.each) if self.each else []
        return splits + (list(folds(read.runs, self.folds, seed=seed)) if self.folds else [])


@dataclass(frozen=True, kw_only=True)
class LatexOptions(Command):
    """Output for a paper."""

    latex: bool = option(
        False, "print the main table on stdout as LaTeX (booktabs); messages go to stderr", excludes=("json",)
    )


@dataclass(frozen=True, kw_only=True)
class LevelOptions(Command):
    """Coverage of intervals."""

    level: Level = option(0.9, "coverage of intervals", metavar="SHARE")


@dataclass(frozen=True, kw_only=True)
class BootstrapOptions(TableOptions, LevelOptions):
    """Options for bootstrap intervals of a fitted law."""

    runs: Path | str | None = option(
        None,
        "table to which the law was fitted, for bootstrap intervals",
        metavar="RUNS",
        read=source,
        needs=("bootstrap",),
    )
    bootstrap: Resamples = option(0, "number of resamples of --runs", metavar="COUNT", needs=("runs",))

    def resamples_of(self, fit: Any) -> Any:
        """Return the bootstrap of a fit by resampling its runs."""
        from moejax.fit.fit_result import FitResult
        from moejax.fit.uncertainty.bootstrap import bootstrap

        if not isinstance(fit, FitResult):
            raise UserError(
                "--runs is for bootstrap intervals of a fit; give the fit's file (fit.json of `moejax fit --out`) as "
                "--law."
            )
        assert self.runs is not None, "the command checks it"
        return bootstrap(fit, self.read(self.runs, type(fit.law), usual=fit.reading).runs, self.bootstrap)


@dataclass(frozen=True, kw_only=True)
class ConventionOptions(Command):
    """The convention for active parameters at given total parameters and sparsity."""

    active_convention: str | None = option(
        None,
        "convention for active parameters if only total parameters and sparsity are given: proportional (all "
        "parameters are in experts; the default), backbone_by_active, backbone_by_total",
        metavar="NAME",
    )


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(Command):
    """A config file with its overrides."""

    config: str | None = option(None, "config file; --config.a.b=VALUE changes one setting", metavar="FILE.py")
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArchitectureOptions(ConfigOptions):
    """An architecture, given by a published model's name or a config file."""

    arch: str | None = option(None, "a published model, such as deepseek-v3.1", metavar="NAME", excludes=("config",))

    def architecture_and_length(self) -> tuple[Architecture | None, int | None]:
        """Return the validated architecture and the config's sequence length; None for values that are not given."""
        # A published model needs no ConfigDict, so `moejax predict` starts faster without this import.
        if self.arch is not None:
            from moejax.laws.catalogue import find

            return find(self.arch).architecture, None
        if self.config is None:
            return None, None
        from moejax.cli.config_file import load_architecture

        return load_architecture(self.config, self.overrides)

    def architecture(self) -> Architecture | None:
        """Return the validated architecture; None if no architecture is given."""
        return self.architecture_and_length()[0]


@dataclass(frozen=True, kw_only=True)
class ExportableOptions(ConfigOptions):
    """A config file, and an option to require that transformers can load the trained model."""

    exportable: str | None = option(
        None,
        "exit before training if transformers cannot load this architecture: with hf, as any of its classes; with "
        "hf:FAMILY, as that family's class; with hf:moejax, also with the custom code of moejax convert",
        metavar="hf[:FAMILY]",
    )

    def check_exportable(self, architectures: Mapping[str, Architecture]) -> None:
        """Raise ``UserError`` if one of the named models cannot be exported as requested."""
        if self.exportable is None:
            return
        from moejax.huggingface.conversion import check_exportable

        check_exportable(self.exportable, architectures)


@dataclass(frozen=True, kw_only=True)
class StudyOptions(ExportableOptions):
    """A study, given by a config file or its folder."""

    out: Any = option(None, "output folder (default: runs/NAME)", metavar="DIR", read=str, output=True)

    resume: bool = option(False, "resume the study in --out, without --config")

    def check(self) -> None:
        """Raise ``UserError`` if neither a config nor a folder to resume is given."""
        if self.config or (self.resume and self.out):
            return
        if self.out:
            raise UserError(
                f"--out {self.out} was given without --config; add --config=FILE.py to start a study in it, or "
                "--resume to resume its study."
            )
        raise UserError("No study was named; give --config=FILE.py, or --resume --out=DIR.")

    def load_study(self) -> tuple[Any, str]:
        """Return the study and its folder. A config file of a single training run gives a study with one model."""
        from moejax.cli.config_file import build_overridden, read
        from moejax.study.run import read_study
        from moejax.study.study import Study, study_of
        from moejax.train.training import Training

        if not self.config:
            return read_study(str(self.out)), str(self.out)
        settings = read(self.config)
        if "architecture" in settings:
            study = study_of(build_overridden(Training, settings, self.overrides))
        else:
            study = build_overridden(Study, settings, self.overrides)
        return study, str(self.out or f"runs/{study.name}")


def settings_of(cls: type[T], command: Command) -> T:
    """Return a settings dataclass with the values of the command's options of the same names."""
    return cls(**{field.name: getattr(command, field.name) for field in fields(cls)})  # type: ignore[arg-type]
