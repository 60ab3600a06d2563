"""Format the rows of a run as tables: limits, goals, and all measurements. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from accelerator_stages.cases import NO_TIME, Row, ended, is_measured
from moejax.result import Column, Result, Table, percent

GOAL_TFLOPS, GOAL_MFU, GOAL_RATIO, GOAL_WARM = 400.0, 0.35, 1.5, 0.1
"""Goals on an H100 or H200: TFLOP/s of grouped matmuls, MFU of a step, speed relative to Hugging Face, and compilation
time of a second start."""

WORDS: dict[str, Any] = {"words": True}


def current(rows: list[Row]) -> list[Row]:
    """Return the newest row of each case, preferring rows with measurements, among the rows that belong in one table
    (``others``).
    """
    found: dict[tuple[str, str], Row] = {}
    left_out = others(rows)
    for row in ended(rows):
        if row["run"] in left_out:
            continue
        key = row["stage"], row["case"]
        if key not in found or is_measured(row) or not is_measured(found[key]):
            found[key] = row
    return list(found.values())


def others(rows: list[Row]) -> dict[int, str]:
    """Return the runs that do not belong in a table with the newest run, with the reason: rehearsals if there is a real
    run, runs without an accelerator, and runs on other devices.
    """
    dry = {row["run"] for row in rows if row.get("is_dry")}
    runs = sorted({row["run"] for row in rows})
    found = dict.fromkeys(dry, "that was a rehearsal") if dry < set(runs) else {}
    on_cpu = {row["run"] for row in rows if row.get("platform") == "cpu"} - dry
    found |= dict.fromkeys(on_cpu, "without an accelerator")
    device = {row["run"]: row["device"] for row in rows if row["stage"] == "machine" and row.get("device")}
    known = [run for run in runs if run in device and run not in found]
    return found | {run: f"on {device[run]}" for run in known if device[run] != device[known[-1]]}


def summary(rows: list[Row], *, only_limits: bool = False) -> Result:
    """Return the tables of a folder's rows: limits and, unless ``only_limits``, all measurements."""
    dry = all(row["run"] in {one["run"] for one in rows if one.get("is_dry")} for row in rows)
    warnings = ["A rehearsal on a CPU with tiny shapes: the times are meaningless."] if dry and rows else []
    warnings += [f"Rows of a run {why} are left out." for why in sorted(set(others(rows).values()))]
    rows = current(rows)
    measured = [row for row in rows if is_measured(row)]
    warnings += [
        f"{row['stage']}, {row['case']}: wrong by {row['error_ratio']:.2g}, at most {row['limit']:.2g} is rounding."
        for row in measured
        if row.get("is_right") is False
    ]
    warnings += [f"{row['stage']}, {row['case']}: {row['error']}" for row in rows if "error" in row]
    # Cases without a kernel on this device do not count as missing; cases without time left and failures do.
    stopped = [row for row in rows if "error" in row or row.get("left_out") == NO_TIME]
    tables = [limits(measured, sum(row["stage"] == "correctness" for row in stopped))]
    if not only_limits:
        tables += [make([row for row in measured if row["stage"] == stage]) for stage, make in TABLES.items()]
        tables.append(_left_out(rows))
    return Result(_title(measured), warnings, [table for table in tables if table.rows])


def _title(rows: list[Row]) -> str:
    facts = {name: value for row in rows if row["stage"] == "machine" for name, value in row.items()}
    parts = [facts.get("device"), facts.get("driver_version") and f"driver {facts['driver_version']}"]
    parts += [f"{name} {facts[name]}" for name in ("jax", "python") if facts.get(name)]
    return f"On {', '.join(map(str, filter(None, parts)))}" if any(parts) else "Measured"


def limits(rows: list[Row], unreached: int = 0) -> Table:
    """Return each limit and goal with its measurement and their ratio. ``unreached`` is the number of checks that did
    not run.
    """
    found = list(_limits(rows, unreached))
    columns = [
        Column("what", **WORDS), Column("limit", **WORDS), Column("measured", **WORDS), Column("share", percent()),
        Column("goal", **WORDS), Column("met", **WORDS),
    ]  # fmt: skip
    return Table("Limits", columns, found)


def _limits(rows: list[Row], unreached: int) -> Iterator[Sequence[Any]]:
    stages: dict[str, dict[str, Row]] = {}
    for row in rows:
        stages.setdefault(row["stage"], {})[row["case"]] = row
    facts = {name: value for row in stages.get("machine", {}).values() for name, value in row.items()}
    ceilings = stages.get("ceilings", {})
    peak_bytes, peak = facts.get("peak_gigabytes_per_second"), facts.get("peak_tflops_per_second")
    if "copy" in ceilings:
        rate = max(ceilings[case]["gigabytes_per_second"] for case in ("copy", "add one") if case in ceilings)
        yield _line("bytes copied", peak_bytes, "GB/s stated", rate, "GB/s")
    ceiling = ceilings.get("product bfloat16", {}).get("tflops_per_second")
    if ceiling:
        yield _line("product of 8192³ in bfloat16", peak, "TFLOP/s stated", ceiling, "TFLOP/s")
    checks = stages.get("correctness", {}).values()
    if checks:
        right, count = sum(row["is_right"] for row in checks), len(checks) + unreached
        yield ("checks", f"{count} that can be made", f"{right} right", right / count, "all", _met(right, count))
    grouped = [row for row in stages.get("grouped", {}).values() if row["is_grouped"]]
    for key, best in _best(grouped, ("model", "product", "part")):
        what = f"grouped {' '.join(key)} ({best['backend']})"
        yield _line(what, ceiling, "TFLOP/s of one product", best["tflops_per_second"], "TFLOP/s", GOAL_TFLOPS)
    for key, best in _best(stages.get("attention", {}).values(), ("model", "length", "mask", "part")):
        what = f"attention {' '.join(map(str, key))} ({best['kernel']})"
        yield _line(what, ceiling, "TFLOP/s of one product", best["tflops_per_second"], "TFLOP/s")
    steps = [row for row in stages.get("steps", {}).values() if row.get("same_as")]
    if steps:
        best = max(steps, key=lambda row: row["tokens_per_second"])
        mfu = best.get("mfu")
        speed, goal = f"{best['tokens_per_second']:,.0f} tokens/s", f"{GOAL_MFU:.0%} MFU"
        yield f"step: {best['case']}", "all FLOPs stated", speed, mfu, goal, mfu and _met(mfu, GOAL_MFU)
    yield from _against_hugging_face(stages)
    compiled = stages.get("compile", {})
    if {"cold", "warm"} <= compiled.keys():
        cold, warm = (compiled[case]["compile_seconds"] for case in ("cold", "warm"))
        goal = f"at most {GOAL_WARM:.0%}"
        yield (
            "second start's compilation",
            f"{cold:.1f} s cold",
            f"{warm:.1f} s warm",
            warm / cold,
            goal,
            _met(-warm / cold, -GOAL_WARM),
        )
    for row in stages.get("resume", {}).values():
        if "is_equal" in row:
            of = f"{row['lines']} lines of the log"
            yield (
                row["case"],
                of,
                f"{row['equal_lines']} equal",
                row["equal_lines"] / row["lines"],
                "all",
                _met(row["is_equal"], True),
            )


def _against_hugging_face(stages: dict[str, dict[str, Row]]) -> Iterator[Sequence[Any]]:
    """Return the ratios of moejax's to Hugging Face's speed on the same shapes."""
    theirs: dict[str, float] = {}
    for row in stages.get("hugging_face", {}).values():
        theirs[row["same_as"]] = min(row["milliseconds"], theirs.get(row["same_as"], row["milliseconds"]))
    ours: dict[str, float] = {}
    for row in (*stages.get("grouped", {}).values(), *stages.get("steps", {}).values()):
        if same := row.get("same_as"):
            ours[same] = min(row["milliseconds"], ours.get(same, row["milliseconds"]))
    for same, their in theirs.items():
        if same in ours:
            ratio, goal = their / ours[same], f"{GOAL_RATIO} ×"
            what = f"{same}, times Hugging Face's speed"
            yield what, f"{their:.4g} ms theirs", f"{ours[same]:.4g} ms", ratio, goal, _met(ratio, GOAL_RATIO)


def _line(what: str, limit: float | None, of: str, measured: float, unit: str, goal: float | None = None) -> Sequence:
    stated = "not known" if limit is None else f"{limit:,.4g} {of}"
    share = None if limit is None else measured / limit
    return (what, stated, f"{measured:,.4g} {unit}", share, goal and f"{goal:g} {unit}", goal and _met(measured, goal))


def _met(value: float, goal: float) -> str:
    return "yes" if value >= goal else "no"


def _best(rows: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Return the row with the highest rate for each combination of these entries."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    for key, found in groups.items():
        yield key, max(found, key=lambda row: row["tflops_per_second"])


def _columns(title: str, *columns: Column | tuple[str, Column]) -> Callable[[list[Row]], Table]:
    """Return a table of the rows with the named entries as columns, which may have other headings."""
    named = [(column.name, column) if isinstance(column, Column) else column for column in columns]

    def make(rows: list[Row]) -> Table:
        values = [[row.get(name) for name, _ in named] for row in rows]
        return Table(title, [column for _, column in named], values)

    return make


def _counted(calls: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in calls.items())


MS = Column("time", ".4g", "ms")
SPREAD = ("spread", Column("spread", percent()))
RATE = ("tflops_per_second", Column("rate", ".4g", "TFLOP/s"))
COMPILED = ("compile_seconds", Column("compiled in", ".1f", "s"))
CASE = Column("case", **WORDS)


def _profile(rows: list[Row]) -> Table:
    columns = [
        Column("kernel", **WORDS), Column("operation", **WORDS), Column("calls"), Column("time", ".3g", "ms"),
        Column("share", percent()),
    ]  # fmt: skip
    found = [
        [kernel[name] for name in ("name", "operation", "calls", "milliseconds", "share")]
        for row in rows
        for kernel in row["kernels"]
    ]
    return Table("The longest kernels of two steps", columns, found)


TABLES: dict[str, Callable[[list[Row]], Table]] = {
    "ceilings": _columns(
        "Ceilings", CASE, ("milliseconds", MS), SPREAD, ("gigabytes_per_second", Column("rate", ",.0f", "GB/s")), RATE,
        ("share_of_peak", Column("of the peak", percent())),
    ),
    "correctness": _columns(
        "Errors", CASE, ("dtype", Column("type", **WORDS)), ("error_ratio", Column("error", ".1e")),
        ("limit", Column("limit", ".0e")), ("is_right", Column("right", lambda right: "yes" if right else "NO")),
    ),
    "grouped": _columns(
        "Grouped products and experts", CASE, ("milliseconds", MS), SPREAD, RATE,
        ("zipf_tflops_per_second", Column("under Zipf loads", ".4g", "TFLOP/s")), COMPILED,
    ),
    "attention": _columns("Attention, half of the scores counted", CASE, ("milliseconds", MS), SPREAD, RATE, COMPILED),
    "steps": _columns(
        "Steps", CASE, ("tokens_per_second", Column("tokens per second", ",.0f")), ("mfu", Column("MFU", percent())),
        ("milliseconds", MS), ("program_gigabytes", Column("program", ".1f", "GB")),
        ("peak_gigabytes", Column("peak", ".1f", "GB")), COMPILED, ("while_loops", Column("loops")),
        ("calls", Column("calls", _counted, **WORDS)),
    ),
    "eight_bits": _columns(
        "Products of 8-bit numbers", CASE, ("milliseconds", MS), SPREAD, RATE,
        ("tokens_per_second", Column("tokens per second", ",.0f")), COMPILED,
    ),
    "flags": _columns(
        "XLA flags", CASE, ("flags", Column("flags", **WORDS)),
        ("tokens_per_second", Column("tokens per second", ",.0f")), ("mfu", Column("MFU", percent())), COMPILED,
    ),
    "compile": _columns(
        "A start", CASE, ("lower_seconds", Column("trace and lower", ".1f", "s")),
        ("compile_seconds", Column("compile", ".1f", "s")),
        ("first_step_seconds", Column("first step", ".2f", "s")),
    ),
    "profile": _profile,
    "resume": _columns(
        "Killed and resumed", CASE, ("lines", Column("lines")), ("equal_lines", Column("equal")),
        ("first_difference", Column("first difference", **WORDS)),
    ),
    "hugging_face": _columns(
        "Hugging Face", CASE, ("milliseconds", MS), SPREAD, RATE,
        ("tokens_per_second", Column("tokens per second", ",.0f")), ("peak_gigabytes", Column("peak", ".1f", "GB")),
    ),
}  # fmt: skip
"""Functions that make a table for each stage with measurements."""


def _left_out(rows: list[Row]) -> Table:
    columns = [Column("stage", **WORDS), CASE, Column("why", **WORDS)]
    cases: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "left_out" in row:
            cases.setdefault((row["stage"], row["left_out"]), []).append(row["case"])
    found = [
        [stage, names[0] if len(names) == 1 else f"{names[0]}, and {len(names) - 1} more", why]
        for (stage, why), names in cases.items()
    ]
    return Table("Left out", columns, found)
