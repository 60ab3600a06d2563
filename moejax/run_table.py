"""Read, check and write the run table: one row per trained model and token budget, the interface from training to
fitting.

A table is a pandas DataFrame. Its known columns have the types and units of ``COLUMNS``; other columns are unchanged.
pandas is imported only when a table is read or written.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax import input_file, table_file
from moejax.errors import UserError
from moejax.folder import atomic_write, check_as_written
from moejax.quantities import LARGEST, SMALLEST
from moejax.run_sources import source
from moejax.stored import foreign_json
from moejax.wording import argument, says, shown, some, told

DataFrame = Any
"""A ``pandas.DataFrame``; pandas is imported only when a table is read or written."""
Series = Any
"""A ``pandas.Series``."""


TABLE = "runs.parquet"
"""The run table in the folder of a study."""
WHOLE = 1e-9
"""Relative tolerance for whole numbers, because arithmetic has rounding errors."""


@dataclass(frozen=True)
class RunColumn:
    """The type, unit and meaning of a column."""

    kind: str
    """``text``, ``integer``, ``number`` or ``json``."""
    unit: str
    meaning: str
    least: float | None = None
    """Minimum value; None if unbounded."""
    above_zero: bool = False


_text = functools.partial(RunColumn, "text", "")
_json = functools.partial(RunColumn, "json", "")
_count = functools.partial(RunColumn, "integer", least=0.0)
_size = functools.partial(RunColumn, "number", above_zero=True)
_share = functools.partial(RunColumn, "number", least=0.0)


COLUMNS: dict[str, RunColumn] = {
    "study": _text("name of the study that trained the run"),
    "model": _text("name of the architecture within the study"),
    "group": _text("runs that share a trunk or an architecture; resampled together"),
    "seed": _count("", "seed of initialisation and data order"),
    "architecture": _json("every field of moejax.architecture.Architecture"),
    "vocab_size": _count("tokens", "size of the vocabulary"),
    "model_dim": _size("features", "width of the residual stream"),
    "num_layers": _size("layers", "number of blocks"),
    "num_dense_layers": _count("layers", "dense layers before the MoE layers; empty for a dense model"),
    "num_experts": _count("experts", "routed experts per MoE layer; 0 for a dense model"),
    "top_k": _count("experts", "routed experts that serve one token"),
    "num_shared_experts": _share("experts", "experts that serve every token, in units of a routed expert's width"),
    "expert_hidden": _size("features", "width of one routed expert; of the feed-forward for a dense model"),
    "active_experts": _share("experts", "routed and shared experts that serve one token"),
    "granularity": _size("", "2 · model_dim / expert_hidden"),
    "sparsity": _share("share", "experts that do not serve a token, as a share of all"),
    "shared_share": _share("share", "shared experts, as a share of the experts that serve a token"),
    "expansion": _size("", "params_total / params_active"),
    "params_total": _size("parameters", "parameters, embeddings included"),
    "params_active": _size("parameters", "parameters that serve one token, embeddings included"),
    "params_embedding": _share("parameters", "parameters of embedding and unembedding, part of both counts"),
    "params_mtp": _share(
        "parameters", "parameters of multi-token prediction modules, not included in the other counts"
    ),
    "params_mtp_active": _share("parameters", "active parameters of multi-token prediction modules"),
    "tokens": _size("tokens", "training tokens"),
    "unique_tokens": _size("tokens", "distinct tokens available for training, see docs/data.md"),
    "flops": _size("FLOPs", "training FLOPs, forward and backward, multi-token prediction included"),
    "batch_tokens": _size("tokens", "tokens per optimizer step"),
    "sequence_length": _size("tokens", "tokens per sequence"),
    "learning_rate": _size("", "peak learning rate of the schedule"),
    "weight_decay": _share("", "decoupled weight decay"),
    "schedule": _text("name of the learning-rate schedule"),
    "warmup_tokens": _share("tokens", "tokens before the learning rate reaches its peak"),
    "decay_tokens": _share("tokens", "tokens of the final decay, part of tokens"),
    "loss": _size("nats/token", "cross-entropy on the validation set"),
    "is_predicted": _count("", "1 if the loss was predicted instead of measured, else 0"),
    "loss_low": _size("nats/token", "lower end of the 90 % prediction interval of a predicted loss"),
    "loss_high": _size("nats/token", "upper end of the 90 % prediction interval of a predicted loss"),
    "loss_standard_error": _share("nats/token", "standard error of a loss that was not measured"),
    "bits_per_byte": _size("bits/byte", "validation loss per byte of text"),
    "train_loss": _size("nats/token", "cross-entropy on the last training batches"),
    "load_cv": _share("", "standard deviation of the experts' loads, divided by their mean"),
    "balance_loss": _share(
        "", "number of experts · sum of load share · mean probability, mean over layers; 1 if balanced"
    ),
    "max_violation": RunColumn("number", "", "largest load divided by the balanced load, minus 1"),
    "load_entropy": _share("", "entropy of the loads divided by its maximum; 1 if balanced"),
    "dropped_share": _share("share", "assignments that exceeded their expert's capacity"),
    "params_active_served": _size("parameters", "params_active without the experts of dropped assignments"),
    "tokens_per_second": _size("tokens/s", "training throughput"),
    "train_seconds": _share("s", "wall time of training"),
    "mfu": _share("share", "model FLOPs utilization; empty if the chip's peak is unknown"),
    "goodput": _share("share", "share of wall time spent in steps that ran for the first time, over all attempts"),
    "memory_peak_bytes": _size("bytes", "peak memory of the device that used most; on a CPU, of the process"),
    "versions": _json("versions of the software that trained the run"),
    "config": _json("the run's configuration"),
}
"""Every column that moejax writes or reads by name."""


def read(path: str | Path) -> DataFrame:
    """Read a table from Parquet, CSV (also compressed), JSON lines or a tracker's runs (``moejax.run_sources.source``).
    Known columns are checked and typed.

    Raises:
      UserError: the file does not exist, has no known format, or a known column has an invalid value.
    """
    return check(read_as_it_is(path), where=str(path))


def read_as_it_is(path: str | Path) -> DataFrame:
    """Read a table from a file or a tracker's runs, with flat cells and unchecked columns, so that columns can be
    renamed or computed first.

    Notes about the table are in ``attrs["notes"]``. The hash of a Parquet table that moejax wrote is compared first,
    because after a flipped bit a library may return other numbers or crash the process.
    """
    reader = check_source(path)
    if reader is None:
        return _with_rows(source.read(path), path)
    path = Path(table_in(path))
    size = input_file.check(path).st_size
    if path.suffix == ".parquet":
        check_as_written(path)
    try:
        frame = reader(path)
    except MemoryError as error:
        raise UserError(
            f"{path} ({size:,} bytes) does not fit in the memory of this process; give a smaller table, or raise the "
            f"limit (ulimit -v)."
        ) from error
    except OSError as error:
        raise UserError(
            f"Cannot read {path} as a table ({says('Python', error)}); check the file and your permission to read it."
        ) from error
    except ValueError as error:
        raise UserError(f"Cannot read {path} as a table: {told(error)}.") from error
    return _with_rows(frame, path)


def _with_rows(frame: DataFrame, path: str | Path) -> DataFrame:
    if not len(frame):
        raise UserError(f"{path} has no rows; give a table with one row per run.")
    return with_flat_cells(frame)


def table_in(path: str | Path) -> str | Path:
    """Return the table in a study's folder; any other path is returned unchanged."""
    return Path(path, TABLE) if Path(path, TABLE).is_file() else path


def check_source(path: str | Path) -> Callable[[Path], DataFrame] | None:
    """Return the reader of a table's file; None for a tracker's folder or server.

    Raises:
      UserError: the file does not exist or has an unknown suffix, or a folder has no runs.
    """
    if "://" in str(path) and not source.has_prefix(path):
        raise UserError(f"{path} is not a local file; copy it to this machine first.")
    path = table_in(path)
    if source.kind_of(path):
        return None
    path = Path(path)
    if not path.exists():
        raise UserError(f"There is no run table at {path}; give an existing file ({', '.join(_READERS)}).")
    if path.is_dir():
        raise UserError(source.no_runs(path))
    return _by_suffix(path, _READERS)


def write(rows: Iterable[Mapping[str, Any]] | DataFrame, path: str | Path) -> Path:
    """Write rows atomically: if the process dies, the file is either the old one or the new one."""
    import pandas as pd

    path = Path(path)
    writer = _by_suffix(path, _WRITERS)
    frame = rows.copy() if isinstance(rows, pd.DataFrame) else pd.DataFrame([dict(row) for row in rows])
    frame = check(frame, where=str(path))
    with atomic_write(path, noted=path.suffix == ".parquet") as partial:
        writer(frame, partial)
    return path


def check(frame: DataFrame, *, where: str = "The table", computed: Iterable[str] = ()) -> DataFrame:
    """Return the table with known columns converted to their types. Counts in ``computed`` need not be whole numbers.

    Numbers may have suffixes or exponents (``48M``, ``1e20``). Empty cells stay empty, since the required columns
    depend on the use of the table.

    Raises:
      UserError: a value of a known column is not a number, not whole, or outside the column's range.
    """
    frame = frame.copy()
    for name in frame.columns:
        column = COLUMNS.get(name)
        if column is None:
            continue
        if column.kind in _AS_TEXT:
            frame[name] = frame[name].map(_AS_TEXT[column.kind], na_action="ignore")
            continue
        values = numbers(frame[name], where=where)
        for wanted, broken in broken_rules(name, values, whole=name not in computed).items():
            _refuse(where, name, frame[name], broken, f"{column.meaning}; it must be {wanted}")
        whole = column.kind == "integer" and name not in computed and not values.isna().any()
        frame[name] = values.round().astype("int64") if whole else values
    return frame


def invalid_rows(frame: DataFrame, *, computed: Iterable[str] = ()) -> Series:
    """Return a mask of the rows that ``check`` would refuse."""
    import pandas as pd

    invalid = pd.Series(data=False, index=frame.index)
    for name in frame.columns:
        if name in COLUMNS and COLUMNS[name].kind not in _AS_TEXT:
            values, wrong = _parsed(frame[name])
            for broken in broken_rules(name, values, whole=name not in computed).values():
                invalid |= broken
            if len(wrong):
                invalid |= pd.Series(wrong, index=frame.index)
    return invalid


def broken_rules(name: str, values: Series, *, whole: bool = True) -> dict[str, Series]:
    """Return masks of the rows that break a rule of a known column, keyed by the rule as text. Empty cells break none.

    Args:
      whole: True if counts must be whole numbers; False for computed counts.
    """
    column = COLUMNS[name]
    broken = {}
    if column.kind == "integer" and whole:
        near = (values - values.round()).abs() <= WHOLE * values.abs()
        broken[f"a whole number ({argument('mapping', {name: f'round({name})'})} rounds it)"] = ~near & values.notna()
    if column.above_zero:
        broken["above 0"] = values <= 0
        broken[WITHIN] = beyond(values)
    if column.least is not None:
        broken[f"at least {column.least:g}"] = values < column.least
    return broken


WITHIN = f"from {SMALLEST:g} to {LARGEST:g}"


def beyond(values: Series) -> Series:
    """Return a mask of the positive numbers whose products or powers could overflow or underflow a float64."""
    return ((values > 0) & (values < SMALLEST)) | ((values > LARGEST) & (values < math.inf))


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows as plain data, with None for empty cells."""
    return foreign_json(frame.to_json(orient="records"), "The table", shape=list, remedy="")


def with_flat_cells(frame: DataFrame) -> DataFrame:
    """Return the table with lists in cells as text, and with the entries of mappings as columns.

    Text can be compared and used for grouping. A cell ``{"config": {"lr": 1e-3}}`` gives a column ``config.lr``.

    Raises:
      UserError: it is not a table, or two columns have the same name.
    """
    if not all(hasattr(frame, name) for name in ("columns", "attrs", "reset_index")):
        raise UserError(f"Runs are read from a file or a pandas DataFrame; got {shown(frame)}.")
    if twice := [str(name) for name in frame.columns[frame.columns.duplicated()]]:
        raise UserError(f"The table has several columns named {twice[0]}; rename or drop all but one.")
    nested = [name for name in frame.columns if frame[name].dtype == object and frame[name].map(_is_nested).any()]
    flat = frame.copy()
    for name in nested:
        for column, values in _entries(frame[name]).items():
            if column not in flat.columns:
                flat[column] = values
        if (
            not frame[name].map(lambda cell: isinstance(cell, dict)).all()
            or getattr(COLUMNS.get(name), "kind", "") == "json"
        ):
            flat[name] = frame[name].map(lambda cell: str(cell) if _is_nested(cell) else cell)
        else:
            flat = flat.drop(columns=name)
    return flat


def _entries(cells: Series) -> DataFrame:
    """Return the entries of mappings in cells, nested ones included; none if they exceed the column limit."""
    import pandas as pd

    rows = [source.flat(cell, f"{cells.name}.") if isinstance(cell, dict) else {} for cell in cells]
    entries = pd.DataFrame(rows, index=cells.index)
    return entries if len(entries.columns) <= source.MOST_COLUMNS else entries.iloc[:, :0]


def _is_nested(cell: Any) -> bool:
    return isinstance(cell, list | dict | set | tuple) or getattr(cell, "ndim", 0) > 0


def numbers(series: Series, *, where: str = "The table") -> Series:
    """Return a column as float64; texts such as 48M are parsed."""
    values, wrong = _parsed(series)
    _refuse(where, str(series.name), series, wrong, "it must be a number")
    return values


def _parsed(series: Series) -> tuple[Series, Sequence[bool]]:
    """Return a column as float64, and which cells are not numbers."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return series.astype("float64"), ()

    parsed, wrong = [], []
    for value in series:
        try:
            parsed.append(_number(value))
            wrong.append(False)
        except (TypeError, ValueError, OverflowError):
            parsed.append(float("nan"))
            wrong.append(True)
    return pd.Series(parsed, index=series.index, name=series.name, dtype="float64"), wrong


def _number(value: Any) -> float:
    if value is None or value == "" or value != value:
        return float("nan")
    if type(value).__name__ in ("bool", "bool_"):
        raise TypeError("true and false are not numbers")
    if not isinstance(value, str):
        return float(value)
    from moejax.quantities import parse

    return float(parse(value))


def _refuse(where: str, name: str, series: Series, broken: Any, rule: str) -> None:
    """Raise ``UserError`` with the first rows if any value breaks a rule."""
    rows = [i for i, bad in enumerate(broken) if bad]
    if rows:
        wrong = some([f"{shown(series.iloc[i])} in row {i + 1}" for i in rows], most=3)
        raise UserError(f"{where}: column {name} has {wrong}; {rule}.")


def _by_suffix(path: Path, choices: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    for suffix, choice in choices.items():
        if path.name.endswith(suffix):
            return choice
    raise UserError(f"{path} is not a run table: its name must end in one of {', '.join(choices)}.")


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


_AS_TEXT: dict[str, Callable[[Any], str]] = {"text": str, "json": _json_text}


_READERS: dict[str, Callable[[Path], Any]] = {
    ".parquet": table_file.read_parquet,
    ".csv": table_file.read_csv,
    ".csv.gz": table_file.read_csv,
    ".tsv": table_file.read_csv,
    ".tsv.gz": table_file.read_csv,
    ".jsonl": table_file.read_json_lines,
}
ENDINGS = tuple(_READERS)
"""File name endings of run tables."""
_WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False, write_page_checksum=True),
    ".csv": lambda frame, path: path.write_text(table_file.csv_text(frame), encoding="utf-8"),
    ".jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True, double_precision=15),
}
