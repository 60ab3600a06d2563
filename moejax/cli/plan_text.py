"""Plans as tables and as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moejax.cli.table import show
from moejax.quantities import format, format_bytes

if TYPE_CHECKING:
    from moejax.plan.plan import Plan


def as_data(plan: Plan, price: float | None = None) -> dict[str, Any]:
    """A plan with what follows from it."""
    data = {**asdict(plan), "fits": plan.fits}
    data["memory"] |= {"total": plan.memory.total}
    data["bytes_sent"] = plan.bytes_sent
    if plan.roofline is None:
        return data
    data["roofline"] |= {
        "step_seconds": plan.roofline.step_seconds,
        "step_seconds_without_overlap": plan.roofline.step_seconds_without_overlap,
        "limited_by": plan.roofline.limited_by,
    }
    of_program = ("mfu_of_program", "program_seconds") if plan.xla_seconds else ()
    for name in ("mfu", "mfu_without_overlap", *of_program, "tokens_per_day", "days", "chip_hours"):
        data[name] = getattr(plan, name)
    if price is not None:
        data["cost"] = plan.chip_hours * price
    return data


def show_plan(plan: Plan, price: float | None = None) -> None:
    """Print a plan."""
    mesh = " ".join(f"{axis}={size}" for axis, size in plan.mesh.items() if size > 1) or "one device"
    print(
        f"{plan.name} on {plan.topology}: {plan.chips:,} chips, {mesh}; steps of {format(plan.batch_tokens)} tokens in "
        f"{plan.microbatches} microbatches, remat {plan.remat}, exchange {plan.exchange}\n"
    )
    _show_memory(plan)
    if plan.does_not_fit:
        return
    _show_exchanges(plan)
    if plan.roofline is not None:
        _show_time(plan, price)


def show_search(plans: list[Plan]) -> None:
    """Print what a search compiled, best first."""
    rows = []
    for plan in plans:
        mesh = " ".join(f"{axis}={size}" for axis, size in plan.mesh.items() if size > 1)
        timed = plan.roofline is not None and plan.fits
        rows.append(
            [
                mesh,
                plan.remat,
                str(plan.microbatches),
                format_bytes(plan.memory.total, 3),
                f"{plan.roofline.step_seconds:.3g} s" if plan.roofline and timed else "",
                f"{plan.mfu:.1%}" if timed else "",
                f"{plan.program_seconds:.3g} s" if timed and plan.xla_seconds else "",
                f"{plan.mfu_of_program:.1%}" if timed and plan.xla_seconds else "",
                plan.roofline.limited_by if plan.roofline and timed else "" if plan.fits else "does not fit",
            ]
        )
    show(
        "compiled",
        ["mesh", "remat", "parts", "memory", "roofline", "MFU", "program", "MFU of it", "limited by"],
        rows,
        words=["remat", "limited by"],
    )


def _show_memory(plan: Plan) -> None:
    memory = plan.memory
    rows = [
        ["parameters", format_bytes(memory.parameters)],
        ["optimiser state", format_bytes(memory.optimizer_state)],
        ["averages, counters, batch", format_bytes(memory.other_state + memory.batch)],
        ["gradients, activations, buffers", format_bytes(memory.temporaries)],
        ["or in an evaluation", format_bytes(memory.evaluation)],
        ["program", format_bytes(memory.program)],
        ["together", format_bytes(memory.total)],
    ]
    if memory.limit:
        rows.append(["the chip has", format_bytes(memory.limit)])
    show("memory of one chip", ["", "bytes"], rows)


def _show_exchanges(plan: Plan) -> None:
    rows = [
        [
            one.kind,
            one.axes,
            str(one.devices),
            f"{one.count:,}",
            format_bytes(one.bytes_sent, 3),
            f"{1000 * one.seconds:,.3g} ms" if one.seconds else "",
        ]
        for one in sorted(plan.exchanges, key=lambda one: -one.bytes_sent)
        if one.count
    ]
    if rows:
        columns = ["collective", "along", "chips", "times", "sent by a chip", "at least"]
        show("what chips exchange in a step", columns, rows, words=["along"])


def _show_time(plan: Plan, price: float | None) -> None:
    found = plan.roofline
    assert found is not None
    rows = [
        ["products at the peak", f"{found.compute_seconds:.4g} s", f"{plan.step_flops / plan.chips:.3g} FLOPs a chip"],
        ["memory at its bandwidth", f"{found.memory_seconds:.4g} s", "estimated traffic"],
        ["links, behind the work", f"{found.hidden_seconds:.4g} s", "along data and fsdp"],
        ["links, waited for", f"{found.exposed_seconds:.4g} s", "along expert and tensor"],
        ["a step, by the roofline", f"{found.step_seconds:.4g} s", f"limited by {found.limited_by}"],
        ["if nothing overlapped", f"{found.step_seconds_without_overlap:.4g} s", f"MFU {plan.mfu_without_overlap:.1%}"],
    ]
    if plan.xla_seconds:
        rows += [
            ["XLA's own kernels", f"{plan.xla_seconds:.4g} s", "by its cost model"],
            ["grouped products, attention", f"{plan.kernel_seconds:.4g} s", "at the peak, all rows there is room for"],
            ["a step, kernel after kernel", f"{plan.program_seconds:.4g} s", f"MFU {plan.mfu_of_program:.1%}"],
        ]
    show("a step", ["", "seconds", "of"], rows, words=["of"])
    cost = "" if price is None else f", {plan.chip_hours * price:,.0f} at {price:g} an hour"
    print(
        f"MFU {plan.mfu:.1%} by the roofline; {format(plan.tokens_per_day, 3)} tokens a day; "
        f"{format(plan.tokens)} tokens in {plan.days:.3g} days, {plan.chip_hours:,.0f} chip-hours{cost}.\n"
        "A roofline is the least time that is possible: kernels and links below their peak are not in it."
    )
    if plan.program_seconds > found.step_seconds:
        print(
            f"The compiled program's kernels, one after another, take {plan.program_seconds / found.step_seconds:.3g} "
            f"times the roofline's step: MFU {plan.mfu_of_program:.1%} is the better guess (docs/plans.md)."
        )
