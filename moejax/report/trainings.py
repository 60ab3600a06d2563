"""Show the state and the results of training runs as text and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.quantities import clock, format, format_bytes
from moejax.result import Column, Result, Table, Written, percent
from moejax.train.directory.attempts import RUNNING
from moejax.train.directory.metrics import VALIDATION_LOSS, number, source_losses
from moejax.train.directory.status import Status, read_status
from moejax.wording import some

if TYPE_CHECKING:
    from moejax.study.status import RunStatus

ROUTING = {
    "load_cv": "load CV",
    "max_violation": "max vio",
    "load_min": "least",
    "load_max": "largest",
    "load_entropy": "entropy",
    "dead_experts": "dead",
    "dropped_share": "dropped",
    "logit_rms": "logit RMS",
    "bias_range": "bias range",
}
"""Headings of ``moejax.routing.sums.statistics``, short enough for 80 columns."""


METRICS_MISSING = (
    "metrics.jsonl has no line, although there is a checkpoint; restore a copy of the file to see losses and speed"
)

MOST_SOURCES = 12
"""Maximum number of sources whose losses are shown in a line of text."""


def speed_text(tokens_per_second: float, mfu: float | None) -> str:
    """Return speed as ``41,200 tokens/s, MFU 38.1 %``."""
    return f"{tokens_per_second:,.0f} tokens/s" + (f", MFU {mfu:.1%}" if mfu is not None else "")


def training_text(values: Mapping[str, Any]) -> str:
    """Return the logged values of a step on one line: loss, speed, balance, memory, skipped steps."""
    told = [f"loss {values['loss']:.3f}"] if "loss" in values else []
    if VALIDATION_LOSS in values:
        sources = source_losses(values, VALIDATION_LOSS)
        told.append(f"validation {number(values[VALIDATION_LOSS]):.3f}{sources_text(sources, 3)}")
    if "tokens_per_second" in values:
        told.append(speed_text(values["tokens_per_second"], values.get("mfu")))
    if "load_cv" in values:
        told.append(f"load CV {values['load_cv']:.2f}")
    if values.get("dropped_share"):
        told.append(f"dropped {values['dropped_share']:.1%}")
    if values.get("skipped_steps"):
        told.append(f"skipped {values['skipped_steps']:.0f}")
    if "memory_bytes" in values:
        told.append(format_bytes(values["memory_bytes"], 3))
    return ", ".join(told)


def sources_text(losses: Mapping[str, float], digits: int = 4) -> str:
    """Return the losses of a mixture's sources as `` (web 3.214, code 2.871)``; empty for a single source."""
    told = some([f"{name} {loss:.{digits}f}" for name, loss in losses.items()], most=MOST_SOURCES)
    return f" ({told})" if losses else ""


def memory_text(in_use: int | None, peak: int) -> str:
    """Return memory as ``1.2 GB, at most 3.4 GB``."""
    return (f"{format_bytes(in_use, 3)}, " if in_use is not None else "") + f"at most {format_bytes(peak, 3)}"


def goodput_text(seconds: Mapping[str, float]) -> str:
    """Return goodput as ``87.3% of 12:07 (starting 9.1%, checkpointing 3.6%)``, from seconds keyed by cause."""
    whole = sum(seconds.values()) or 1.0
    lost = sorted(((s / whole, cause) for cause, s in seconds.items() if cause != "training"), reverse=True)
    told = ", ".join(f"{cause} {part:.1%}" for part, cause in lost if part >= 0.0005)
    return f"{seconds['training'] / whole:.1%} of {clock(whole)}" + (f" ({told})" if told else "")


def routing_tables(layers: Mapping[str, Sequence[Any]] | None, title: str) -> list[Table]:
    """Return a table with a row per MoE layer; an empty list for a dense model."""
    if not layers:
        return []
    named = [name for name in ROUTING if name in layers]
    columns = [Column(ROUTING[name], ".0f" if name == "dead_experts" else ".3f") for name in named]
    rows = [
        [layer if isinstance(layer, str) else int(layer), *map(float, values)]
        for layer, *values in zip(layers["layer"], *(layers[name] for name in named), strict=True)
    ]
    return [Table(title, [Column("layer"), *columns], rows)]


def state_text(status: Status | RunStatus) -> str:
    """Return a training run's state, such as ``running, compiling``."""
    return ", ".join(filter(None, (status.state, status.activity)))


def training_status(status: Status) -> Result:
    """Return the state of one training run."""
    table = Table(f"{status.name} in {status.folder}", (Column(""), Column("", words=True)), list(_lines(status)))
    return Result(tables=[table], data=status)


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    """Yield the labels and values of a training run's status."""
    yield "state", f"{state_text(status)}: {status.why}" if status.why else state_text(status)
    if status.phase is not None and status.step is not None and status.tokens is not None:
        yield (
            "last step",
            f"{status.phase}, step {status.step:,}: {format(status.tokens)} tokens of {format(status.budget_tokens)}",
        )
    if status.metrics_missing:
        yield "metrics", METRICS_MISSING
    if status.total_steps is not None:
        yield "steps of all phases", f"{status.steps_done:,} of {status.total_steps:,}"
    if status.loss is not None:
        yield "loss of last batch", f"{status.loss:.4f} nats/token"
    if (last := status.last_validation) is not None:
        sources = sources_text(last.get("sources", {}))
        yield "validation loss", f"{last['loss']:.4f} nats/token{sources} at {last['phase']}, step {last['step']:,}"
    if status.tokens_per_second is not None:
        yield "recent speed", speed_text(status.tokens_per_second, status.mfu)
    if status.eta_seconds is not None:
        yield "left", f"about {clock(status.eta_seconds)}"
    if status.state == RUNNING and status.silent_seconds is not None:
        yield "last heartbeat", f"{clock(status.silent_seconds)} ago"
    if status.last_checkpoint is not None:
        place, step, age = (status.last_checkpoint[name] for name in ("phase", "step", "age_seconds"))
        yield "last checkpoint", f"{place}, step {step:,}, {clock(age)} ago"
    if status.best_checkpoint is not None:
        place, step, loss = (status.best_checkpoint[name] for name in ("phase", "step", "validation_loss"))
        yield "best checkpoint", f"{place}, step {step:,}, validation loss {loss:.4f} nats/token"
    if status.skipped_steps:
        yield "skipped steps", f"{status.skipped_steps:,}"
    if status.memory_peak_bytes is not None:
        yield "memory", memory_text(status.memory_bytes, status.memory_peak_bytes)
    if status.attempts > 1:
        yield "started", f"{status.attempts} times"
    if status.goodput is not None:
        yield "goodput", goodput_text(status.seconds)
    for row in status.rows:
        sources = sources_text(row.get("sources", {}))
        yield f"at {format(row['tokens'])} tokens", f"validation loss {row['loss']:.4f} nats/token{sources}"


TRAININGS = (
    Column("model", value="name"),
    Column("state", words=True, value=lambda status: state_text(status)),
    Column("steps", value=lambda status: _steps(status)),
    # A non-finite loss is a known value and is shown.
    Column("loss", value=lambda one: None if one.loss is None else Written(one.loss, f"{one.loss:.4f}")),
    Column("validation", ".4f", value=lambda one: one.rows[-1]["loss"] if one.rows else None),
    Column("tokens/s", ",.0f", value="tokens_per_second"),
    Column("left", clock, value="eta_seconds"),
    Column("goodput", percent(), value="goodput"),
)


def _steps(status: Status) -> str:
    return f"{status.steps_done:,}" + (f" of {status.total_steps:,}" if status.total_steps is not None else "")


def study_trainings(statuses: Sequence[Status]) -> Result:
    """Return the state of every training run of a study."""
    why = [f"{status.name} {status.state}: {status.why}" for status in statuses if status.why]
    why += [f"{status.name}: {METRICS_MISSING}" for status in statuses if status.metrics_missing]
    return Result(tables=[Table.of("Trainings", TRAININGS, statuses)], notes=why, data=statuses)


TRAINED = (
    Column("model", value="model"),
    Column("tokens", ",", value="tokens"),
    Column("loss", ".4f", unit="nats/token", value="loss"),
    Column("bits/byte", ".4f", value="bits_per_byte"),
    Column("load CV", ".3f", value="load_cv"),
    Column("tokens/s", ",.0f", value="tokens_per_second"),
)


def trained(rows: Sequence[Mapping[str, Any]], folder: Path) -> Result:
    """Return the rows of training runs; for a single run also routing, speed, memory and goodput."""
    table = Table.of("Trained", TRAINED, rows)
    if len({row["model"] for row in rows}) > 1:
        return Result(tables=[table])
    status = read_status(folder)
    speed = rows[-1]["tokens_per_second"]
    # Without several sources, rows have no losses of sources.
    notes = [
        f"loss by source at {format(row['tokens'])} tokens:{sources_text(sources)}"
        for row in rows
        if (sources := source_losses(row, "loss"))
    ]
    notes += [] if speed is None else [f"mean speed: {speed_text(speed, rows[-1]['mfu'])}"]
    if status.memory_peak_bytes is not None:
        notes.append(f"memory: {memory_text(status.memory_bytes, status.memory_peak_bytes)}")
    if status.goodput is not None:
        notes.append(f"goodput: {goodput_text(status.seconds)}")
    routing = routing_tables(status.layers, "routing of the last logged batch, by layer")
    return Result(tables=[table, *routing], notes=notes)
