"""Summarize a plan as a ``Result``: memory, communication, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from moejax.plan.analytic_estimate import analytic_estimate
from moejax.plan.search import ROOM, PlanCandidate, ways
from moejax.plan.step_time import mfu_of_step
from moejax.quantities import ASSUMED_MFU, format, format_bytes
from moejax.result import Column, Result, Table, Written, percent
from moejax.sharding import DCN_DATA
from moejax.wording import option_hint

if TYPE_CHECKING:
    from moejax.plan.analytic_estimate import AnalyticEstimate
    from moejax.plan.plan import CollectiveVolume, Plan
    from moejax.plan.topology import Topology
    from moejax.train.training import Training

MEASURED = "measured steps on one H200 took 1.5 to 1.7 times the program's estimate, and no other chip was measured"
"""Accuracy of the estimates compared with measured steps (docs/benchmarks.md, One H200)."""

ROOFLINE_MEASURED = 2.4
"""Accuracy of ``analytic_estimate``: 0.152 s for the step with 0.358 s (docs/benchmarks.md, One H200)."""
QUANTIZED_MEASURED = "on one H200 neither 8-bit type was faster than bfloat16, and no other chip was measured"
"""Measured gain of 8-bit matmuls (docs/benchmarks.md, One H200)."""


def as_data(plan: Plan, price: float | None = None) -> dict[str, Any]:
    """Return a plan and its derived quantities as plain data."""
    data = {**asdict(plan), "fits": plan.fits}
    data["memory"] |= {"total": plan.memory.total if plan.memory.is_known else None}
    data["bytes_sent"] = plan.bytes_sent
    if plan.roofline is None:
        return data
    for name in ("roofline", "evaluation_roofline"):
        estimate = getattr(plan, name)
        data[name] |= {
            "step_seconds": estimate.step_seconds,
            "step_seconds_without_overlap": estimate.step_seconds_without_overlap,
            "limited_by": estimate.limited_by,
        }
    known = ["floor", "cycles"] if plan.has_cycles else ["floor"]
    for name in ("program", "evaluation_program"):
        data[name] |= {f"{one}_seconds": getattr(getattr(plan, name), f"{one}_seconds") for one in known}
    if not plan.fits:
        return data
    of_program = [f"mfu_of_program_{one}" for one in known]
    for name in ("mfu", "mfu_without_overlap", *of_program, "seconds", "tokens_per_day", "days", "chip_hours"):
        data[name] = getattr(plan, name)
    if price is not None:
        data["cost"] = plan.chip_hours * price
    return data


def summary(plan: Plan, price: float | None = None) -> Result:
    """Return the memory of one chip, the communication of a step, and its time."""
    devices = "" if plan.devices == plan.chips else f" of {plan.devices // plan.chips} devices"
    title = (
        f"{plan.name} on {plan.topology}: {plan.chips:,} chips{devices}, {_mesh(plan) or 'one device'}; steps of "
        f"{format(plan.batch_tokens)} tokens in {plan.microbatches} microbatches, remat {plan.remat}, "
        f"expert communication {plan.expert_communication}"
    )
    if plan.matmul_quantization != "none":
        title += f", matmuls in {plan.matmul_quantization}"
    tables = [_memory(plan)]
    if not plan.does_not_fit:
        tables += _communication(plan)
        # A step that does not fit has no time.
        tables += [_time(plan, price)] if plan.roofline is not None and plan.fits else []
    return Result(title=title, warnings=_warnings(plan), tables=tables, data=as_data(plan, price))


def excess(plan: Plan) -> str:
    """Return a sentence that states by how much a training run exceeds a chip's memory, or XLA's reason."""
    if plan.memory.left >= 0:
        return f"{plan.name} does not fit {plan.topology}: {plan.does_not_fit.rstrip('.')}."
    over = f"{format_bytes(-plan.memory.left, 3)} more than the {format_bytes(plan.memory.limit, 3)} of a chip"
    return f"{plan.name} does not fit {plan.topology}: it needs {over}."


def too_large(plan: Plan, fitting: Sequence[tuple[str, Plan]]) -> str:
    """Return a message about a plan that does not fit, with the changes of ``moejax.plan.search.remedies`` that do."""
    memory = plan.memory
    rest = f"gradients, activations and buffers {format_bytes(memory.temporaries, 3)}"
    parts = (
        f"parameters {format_bytes(memory.parameters, 3)}, optimizer {format_bytes(memory.optimizer_state, 3)}, "
        f"{rest if memory.is_known else 'other memory unknown'}"
    )
    what = f"{excess(plan).removesuffix('.')} ({parts})."
    if not fitting:
        return f"{what} No candidate that was tried fits; use more or larger chips."
    lines = []
    for words, one in fitting:
        mfu = f", {one.mfu:.0%} MFU by the roofline" if one.roofline else ""
        lines.append(f"  {words}   {format_bytes(one.memory.total, 3)} a chip{mfu}")
    return f"{what} These were tried and fit:\n" + "\n".join(lines)


def _warnings(plan: Plan) -> list[str]:
    if not plan.fits:
        return [excess(plan)]
    once = plan.program.once_counted if plan.program else 0
    if not once:
        return []
    return [
        f"{once:,} kernels are in loops without a stated trip count, such as tiled attention. They count once, so "
        "the program's times are too short, and days and cost may be too low."
    ]


def _run_text(several: bool, steps: int, tokens: int, chip_hours: float, chips: int, price: float | None) -> str:
    """Return the steps, tokens, time and cost of a training run with the branches of all budgets."""
    whole = "All budgets" if several else "The whole run"
    return f"{whole}: {steps:,} steps, {format(tokens, 3)} tokens, {_cost_text(chip_hours, chips, price)}"


def _cost_text(chip_hours: float, chips: int, price: float | None) -> str:
    """Return the time and cost of a training run."""
    hours = chip_hours / chips
    time = f"{format(hours, 3)} hours" if hours < 48 else f"{format(hours / 24, 3)} days"
    cost = "" if price is None else f", {format(chip_hours * price, 3)} at {price:g} an hour"
    return f"{time}, {format(chip_hours, 3)} chip-hours{cost}"


def _reserve(expected: float, measured: float, chips: int, price: float | None) -> str:
    """Return the time and cost to reserve, given the expected chip-hours and those at ``ROOFLINE_MEASURED``."""
    because = f"the only measured step, on one H200, took {ROOFLINE_MEASURED:g} times its roofline"
    if measured <= expected:
        return f"The expected time is at least {ROOFLINE_MEASURED:g} times the roofline, and {because}."
    return f"Until you have measured a step, reserve {_cost_text(measured, chips, price)}: {because}."


ESTIMATED = "In six plans for TPUs, XLA needed 0.9 to 1.8 times the estimated memory."
"""Accuracy of ``AnalyticEstimate.memory``."""


def estimate_summary(
    training: Training,
    topology: Topology,
    estimate: AnalyticEstimate,
    price: float | None = None,
    assumed_mfu: float = ASSUMED_MFU,
) -> Result:
    """Return the memory of one chip by component and the time of a step, estimated without a compilation.

    Time and cost of the whole run are printed at the roofline, which is a bound, and at ``assumed_mfu``.
    """
    memory, roofline, device = estimate.memory, estimate.roofline, topology.device
    data: dict[str, Any] = {**asdict(estimate), "name": training.name, "topology": topology.name}
    data["memory"]["total"] = memory.total
    rows = [[name.replace("_", " "), size] for name, size in asdict(memory).items() if size]
    rows += [["together", memory.total]] + ([["the chip has", device.memory_bytes]] if device else [])
    tables = [Table("estimated memory of one chip", (Column(""), Column("bytes", format_bytes)), rows, [ESTIMATED])]
    if roofline is not None and topology.chip is not None:
        seconds, recipe = roofline.step_seconds, training.recipe
        mfu = mfu_of_step(training, topology, seconds)
        steps, tokens = recipe.total_steps, recipe.total_tokens
        hours = tokens / recipe.batch_tokens * seconds / 3600 * topology.chips
        expected = hours * mfu / assumed_mfu
        run = _run_text(len(recipe.budgets_tokens) > 1, steps, tokens, hours, topology.chips, price)
        times = {"matmuls at the peak": roofline.compute_seconds, "memory at its bandwidth": roofline.memory_seconds}
        times |= {f"links along {axes}": one for axes, one in roofline.link_seconds.items()}
        times |= {"a step": seconds, "without any overlap": roofline.step_seconds_without_overlap}
        notes = [
            f"The roofline's MFU is {mfu:.1%}, limited by {roofline.limited_by}. A compiled plan is more accurate.",
            f"{run}: a lower bound, at the roofline.",
            f"Expected at {assumed_mfu:.0%} MFU (--mfu, as in moejax launch and design): "
            f"{_cost_text(expected, topology.chips, price)}."
            + (" This exceeds the roofline's MFU; lower --mfu." if assumed_mfu > mfu else ""),
            _reserve(expected, hours * ROOFLINE_MEASURED, topology.chips, price),
        ]
        columns = (Column(""), Column("roofline", lambda value: f"{value:.4g} s"))
        tables.append(Table("estimated time of a step", columns, list(times.items()), notes))
        data |= {"step_seconds_without_overlap": roofline.step_seconds_without_overlap}
        data |= {"step_seconds": seconds, "mfu": mfu, "total_steps": steps, "total_tokens": tokens}
        data |= {"days": hours / topology.chips / 24, "chip_hours": hours}
        data |= {"assumed_mfu": assumed_mfu, "chip_hours_at_assumed_mfu": expected}
        data |= {} if price is None else {"cost": hours * price, "cost_at_assumed_mfu": expected * price}
    title = f"{training.name} on {topology.name}, estimated without a compilation: {ways(training, topology)}"
    over = memory.total - device.memory_bytes if device else 0
    search = option_hint("--search") or "moejax plan --search --estimate"
    too_large = f"The estimated memory exceeds the chip's by {format_bytes(over, 3)}; {search} ranks what fits."
    warnings = [too_large] if over > 0 else []
    return Result(title=title, warnings=warnings, tables=tables, data=data)


SHOWN = 10
"""Maximum number of rows in the table of an estimated search."""


def estimated_search_summary(
    ranked: Sequence[PlanCandidate],
    price: float | None = None,
    assumed_mfu: float = ASSUMED_MFU,
    *,
    is_config: bool = True,
) -> Result:
    """Return the estimated candidates of a search, best first, followed by the estimate of the best one.

    Args:
      ranked: the configuration's own choice, followed by the other candidates that fit, in order
        (``moejax.plan.search.ranked``).
      is_config: False if the configuration's own mesh does not fit and another one is the first.
    """
    own, *others = ranked
    device = own.topology.device
    fits = device is None or own.memory_bytes <= ROOM * device.memory_bytes
    every = sorted(ranked, key=lambda one: one.seconds) if fits else [*others, own]
    rows = [_estimated(one, is_config and one is own) for one in every[:SHOWN]]
    if own not in every[:SHOWN]:
        rows.append(_estimated(own, is_config))
    columns = (
        Column("", words=True),
        Column("mesh"),
        Column("remat", words=True),
        Column("microbatches"),
        Column("memory", lambda value: format_bytes(value, 3)),
        Column("roofline", lambda value: f"{value:.3g} s"),
        Column("without overlap", lambda value: f"{value:.3g} s"),
        Column("MFU", percent()),
        Column("limited by", words=True),
    )
    limit = "" if device is None else f" with an estimated memory of at most {ROOM:.0%} of a chip's"
    order = "the number of microbatches, because no time is estimated" if own.topology.chip is None else "the roofline"
    fitting = len(others) + fits
    notes = [
        f"{fitting:,} candidates{limit}, ranked by {order}. Leave out --estimate to compile the best of them."
        if fitting
        else f"There is no candidate{limit}; use more or larger chips, or a smaller model or batch."
    ]
    best = every[0]
    if fitting:
        notes.append(_as_settings(best.training))
    estimate = analytic_estimate(best.training, best.topology)
    result = estimate_summary(best.training, best.topology, estimate, price, assumed_mfu)
    data = {**result.data, "others": [_estimated_data(one) for one in every[1:]]}
    table = Table("estimated candidates", columns, rows, notes)
    return replace(result, tables=[table, *result.tables], data=data)


def _as_settings(training: Training) -> str:
    """Return a sentence with the options of ``train`` and ``launch`` for the first row of a search."""
    recipe = training.recipe
    axes = {axis: size for axis, size in asdict(recipe.mesh).items() if axis != DCN_DATA}
    settings = {f"mesh.{axis}": size for axis, size in axes.items()}
    settings |= {"runtime.remat": recipe.runtime.remat, "microbatches": recipe.microbatches}
    options = " ".join(f"--config.recipe.{name}={value}" for name, value in settings.items())
    return f"To train with the first row: {options}"


def _estimated(one: PlanCandidate, is_own: bool) -> list[Any]:
    roofline = analytic_estimate(one.training, one.topology).roofline
    recipe = one.training.recipe
    return [
        "the config's" if is_own else "",
        _axes(vars(recipe.mesh)),
        recipe.runtime.remat,
        recipe.microbatches,
        one.memory_bytes,
        roofline and roofline.step_seconds,
        roofline and roofline.step_seconds_without_overlap,
        roofline and mfu_of_step(one.training, one.topology, roofline.step_seconds),
        "does not fit" if _exceeds(one) else roofline.limited_by if roofline else "",
    ]


def _exceeds(one: PlanCandidate) -> bool:
    """Return whether the estimated memory of a candidate exceeds the chip's."""
    return one.topology.device is not None and one.memory_bytes > one.topology.device.memory_bytes


def _estimated_data(one: PlanCandidate) -> dict[str, Any]:
    data = {"options": one.words, "memory_bytes": one.memory_bytes, "fits": not _exceeds(one)}
    if one.topology.chip is not None:
        data |= {"step_seconds": one.seconds, "step_seconds_without_overlap": one.seconds_without_overlap}
    return data


def search_summary(plans: list[Plan], price: float | None = None) -> Result:
    """Return the compiled candidates of a search, best first, followed by the summary of the best one."""
    seconds = Column("", lambda value: f"{value:.3g} s")
    columns = (
        Column("mesh"),
        Column("remat", words=True),
        Column("microbatches"),
        Column("memory", lambda value: format_bytes(value, 3)),
        replace(seconds, name="roofline"),
        Column("MFU", percent()),
        replace(seconds, name="program at least"),
        Column("program MFU", percent()),
        replace(seconds, name="by XLA's cycles"),
        Column("limited by", words=True),
    )
    best = summary(plans[0], price)
    table = Table("compiled", columns, [_compiled(plan) for plan in plans])
    others = [as_data(plan, price) for plan in plans[1:]]
    return replace(best, tables=[table, *best.tables], data={**best.data, "others": others})


def _compiled(plan: Plan) -> list[Any]:
    timed = plan.roofline if plan.fits else None
    program = plan.program if timed is not None else None
    return [
        _mesh(plan),
        plan.remat,
        plan.microbatches,
        plan.memory.total if plan.memory.is_known else Written(None, "unknown"),
        timed and timed.step_seconds,
        plan.mfu if timed else None,
        program and program.floor_seconds,
        plan.mfu_of_program_floor if program else None,
        (program and plan.has_cycles and program.cycles_seconds) or None,
        timed.limited_by if timed else "" if plan.fits else "does not fit",
    ]


def _mesh(plan: Plan) -> str:
    return _axes(plan.mesh)


def _axes(mesh: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in mesh.items() if size > 1)


def _memory(plan: Plan) -> Table:
    memory = plan.memory
    rows = [
        ["parameters", memory.parameters],
        ["optimizer state", memory.optimizer_state],
        ["averages, counters, batch", memory.other_state + memory.batch],
    ]
    if memory.is_known:
        rows += [
            ["gradients, activations, buffers", memory.temporaries],
            ["in an evaluation instead", memory.evaluation],
            ["program", memory.program],
            ["together", memory.total],
        ]
    rows += [["the chip has", memory.limit]] if memory.limit else []
    return Table("memory of one chip", (Column(""), Column("bytes", format_bytes)), rows)


def _communication(plan: Plan) -> list[Table]:
    columns = (
        Column("collective"),
        Column("along", words=True),
        Column("chips"),
        Column("times", ","),
        Column("sent by a chip", lambda value: format_bytes(value, 3)),
        Column("over", words=True),
        Column("at bandwidth", lambda value: f"{1000 * value:,.3g} ms"),
    )
    rows = [
        [one.kind, one.axes, one.devices, one.count, one.bytes_sent, _over(one), one.seconds or None]
        for one in sorted(plan.communication, key=lambda one: -one.bytes_sent)
        if one.count
    ]
    return [Table("communication of a step", columns, rows)] if rows else []


def _over(one: CollectiveVolume) -> str:
    if len(one.links) < 2:
        return "".join(one.links)
    return ", ".join(f"{link} {format_bytes(sent, 3)}" for link, sent in one.links.items())


def _time(plan: Plan, price: float | None) -> Table:
    roofline, program = plan.roofline, plan.program
    evaluation, evaluated = plan.evaluation_roofline, plan.evaluation_program
    assert roofline
    assert program
    assert evaluation
    assert evaluated
    one = "chip" if plan.devices == plan.chips else "device"
    hidden, exposed = roofline.hidden_seconds, roofline.exposed_seconds
    waited = exposed if program.waited_seconds is None else program.waited_seconds
    beside = hidden if program.waited_seconds is None else sum(program.link_seconds.values()) - waited
    scheduled = "" if program.waited_seconds is None else " in the roofline; by XLA's schedule in the program"
    rows = [
        [
            "matmuls at the peak",
            roofline.compute_seconds,
            None,
            None,
            f"{plan.step_flops / plan.devices:.3g} FLOPs a {one}",
        ],
        ["memory at its bandwidth", roofline.memory_seconds, None, None, "estimated traffic"],
        [
            "XLA's own kernels",
            None,
            program.xla_seconds_at_bandwidth,
            program.xla_seconds,
            "kernels without matmuls at the bandwidth"
            if plan.has_cycles
            else "matmuls at the peak, bytes at the bandwidth",
        ],
        [
            "experts, attention",
            None,
            program.pallas_seconds_of_rows,
            program.pallas_seconds,
            "rows of a balanced routing; all rows of the buffers",
        ],
        ["links, overlapped", hidden, beside, hidden, f"along data and fsdp, between slices{scheduled}"],
        ["links, waited for", exposed, waited, exposed, f"along expert and tensor{scheduled}"],
        [
            "a step",
            roofline.step_seconds,
            program.floor_seconds,
            program.cycles_seconds,
            f"limited by {roofline.limited_by}",
        ],
        [
            "MFU",
            *(Written(mfu, f"{mfu:.1%}") for mfu in (plan.mfu, plan.mfu_of_program_floor, plan.mfu_of_program_cycles)),
            "of the dense bfloat16 peak",
        ],
        [
            "kernel launches",
            None,
            program.launch_seconds or None,
            None,
            f"{program.kernels:,} launches; they overlap with earlier kernels and do not count in a step",
        ],
        [
            "without any overlap",
            roofline.step_seconds_without_overlap,
            None,
            None,
            f"MFU {plan.mfu_without_overlap:.1%}",
        ],
        [
            "an evaluation batch",
            evaluation.step_seconds,
            evaluated.floor_seconds,
            evaluated.cycles_seconds,
            f"{format(plan.evaluation_tokens)} tokens, limited by {evaluation.limited_by}",
        ],
    ]
    seconds = Column("", lambda value: f"{value:.4g} s")
    names = ("roofline", "program at least", "by XLA's cycles")
    columns = [Column(""), *(replace(seconds, name=name) for name in names), Column("of", words=True)]
    if not plan.has_cycles:
        columns, *rows = ([*row[:3], row[4]] for row in (columns, *rows))
    rows = [row for row in rows if any(value is not None for value in row[1:-1])]
    run = _run_text(
        plan.total_tokens != plan.tokens, plan.total_steps, plan.total_tokens, plan.chip_hours, plan.chips, price
    )
    longer = "program" if program.floor_seconds == plan.seconds else "roofline"
    products = "matmuls by XLA's cycles" if plan.has_cycles else "matmuls at the peak"
    is_scheduled = program.waited_seconds is not None
    overlap = "assumed" + (" in the roofline and taken from XLA's schedule in the program" if is_scheduled else "")
    notes = [
        f"The longer estimate is the {longer}'s. {run}. This is {format(plan.tokens_per_day, 3)} tokens a day.",
        "The roofline counts matmuls, estimated memory traffic and links at their peaks. The program counts its "
        f"kernels: {products}, other kernels at the memory bandwidth. The overlap of the links is {overlap}. Neither "
        f"is a strict bound; {MEASURED} (docs/plans.md).",
    ]
    if (kind := plan.matmul_quantization) != "none":
        notes += [
            f"Matmuls in {kind} count at that type's peak, but {QUANTIZED_MEASURED} (docs/quantization.md). For "
            "comparison, also plan with recipe.runtime.matmul_quantization='none'; both MFUs refer to the bfloat16 "
            "peak."
        ]
    return Table("a step", columns, rows, notes)
