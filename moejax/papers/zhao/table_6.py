"""Check Zhao et al. (2025): the experiments' counts (Tables 1 and 6, Appendices H and L), and Eqs. 2 and 3."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from moejax.laws.mixtures.five_factor import routed_experts_factor
from moejax.papers.record import Number, Reading, Record, Records, recorder
from moejax.papers.zhao.shapes import SHAPES, millions, model, shape, sizes, widths

record = recorder("zhao")

UP = "rounded up to whole millions"

SIZES_BY_EXPERTS = {
    "247M": {16: "133", 32: "247", 64: "473", 128: "926"},
    "496M": {16: "269", 32: "496", 64: "949", 128: "1855"},
    "907M": {16: "492", 32: "907", 64: "1738", 128: "3399"},
    "2.40B": {16: "1301", 32: "2404", 64: "4604", 128: "9008"},
    "3.96B": {32: "3964"},
}
"""N in millions in Table 6, by shape and number of routed experts."""

ACTIVE_BY_WIDENING = {
    "247M": {0.5: "31", 1: "48"},
    "496M": {0.5: "64", 1: "99", 2: "170", 4: "312", 6: "453"},
    "907M": {0.5: "116", 1: "181", 2: "310", 4: "570", 6: "829"},
    "2.40B": {0.5: "304", 1: "476", 2: "820", 4: "1508", 6: "2196"},
    "3.96B": {1: "793"},
}
"""N_a in millions in Table 6, by shape and u, if experts become u times as wide and fewer (Appendix H)."""

APPENDIX_H = {
    0.5: ("112", "260", "303"),
    1: ("224", "128", "476"),
    2: ("448", "62", "819"),
    4: ("896", "29", "1507"),
    6: ("1344", "18", "2196"),
}
"""d_expert, n_e and N_a in millions at G = 20, S = 0.2, by u."""


@dataclass(frozen=True)
class Run:
    """One row of Table 6; sizes in parameters and tokens."""

    index: int
    active: float
    total: float
    tokens: float
    experts: float
    shared: float
    validation: bool

    @property
    def setting(self) -> tuple[float, ...]:
        """Fields that identify an experiment."""
        return self.active, self.total, self.tokens, self.experts, self.shared


def table_6() -> list[Run]:
    """Return the 446 configurations of Zhao et al. (2025), Table 6."""
    with (files("moejax.papers.zhao") / "table_6.csv").open() as file:
        return [_run(row) for row in csv.DictReader(file)]


def _run(row: dict[str, str]) -> Run:
    return Run(
        index=int(row["index"]),
        active=float(row["Na"]),
        total=float(row["N"]),
        tokens=float(row["D"]),
        experts=float(row["G"]),
        shared=float(row["S"]),
        validation=row["is_validation"] == "1",
    )


def records() -> Records:
    """Yield every number that follows from the tables."""
    yield from _sizes()
    yield from _appendix_h()
    yield from _counts()
    yield from _ranges()
    yield from _anomalies()


def _millions(where: str, quantity: str, printed: str, value: Number, **rest: Any) -> Record:
    return record(where, quantity, printed, value, Reading(value, UP, "up"), unit="M", **rest)


def _sizes() -> Records:
    for name, (*_, total, active) in SHAPES.items():
        (own_total, own_active), where = millions(model(name)), "Table 1"
        if name.endswith("B"):
            yield record(where, f"total size of the {name} model", total, own_total / 1e3, unit="B")
        else:
            yield _millions(where, f"total size of the {name} model", total, own_total)
        yield _millions(where, f"activated size of the {name} model", active, own_active)
    for name, totals in SIZES_BY_EXPERTS.items():
        for experts, printed in totals.items():
            value = millions(model(name, experts=experts))[0]
            inputs = {"shape": f"Table 1, {name}", "routed experts": experts}
            note = "Table 1 prints the same shape as 2.40B" if printed == "2404" else ""
            yield _millions("Table 6", f"N = {printed}M", printed, value, inputs=inputs, note=note)
    for name, actives in ACTIVE_BY_WIDENING.items():
        for widening, printed in actives.items():
            value = millions(model(name, expert_hidden=widening * SHAPES[name][3]))[1]
            inputs = {"shape": f"Table 1, {name}", "u": widening}
            yield _millions("Table 6", f"N_a = {printed}M at N = {name}", printed, value, inputs=inputs)
    yield from _sizes_without_shapes()


def _sizes_without_shapes() -> Records:
    """Yield sizes of Table 6 whose layers and widths are not printed."""
    reading = "layers and widths that are not printed, inferred from the printed N and N_a"
    pairs = dict.fromkeys((round(run.total / 1e6), round(run.active / 1e6)) for run in table_6())
    rows: dict[str, tuple[str, Number, dict[str, Any]]] = {}
    for total, active in pairs:
        name, everything, serving = widths(total, active)
        dimensions = dict(zip(("layers", "heads", "hidden", "d_expert"), shape(name), strict=True))
        inputs = {**dimensions, "all experts' width": everything, "active experts' width": serving}
        own_total, own_active = sizes(total, active)
        if str(total) not in SIZES_BY_EXPERTS.get(name, {}).values():
            rows.setdefault(f"N = {total}M", (str(total), own_total, inputs))
        if str(active) not in ACTIVE_BY_WIDENING.get(name, {}).values():
            rows.setdefault(f"N_a = {active}M with {name}", (str(active), own_active, inputs))
    for quantity, (text, value, inputs) in rows.items():
        ways = Reading(value, reading), Reading(value, f"{reading}, {UP}", "up")
        yield record(
            "Table 6", quantity.replace(" with ", " at the shape of N = "), text, None, *ways, unit="M", inputs=inputs
        )


def _appendix_h() -> Records:
    where = "Appendix H"
    for widening, (width, experts, active) in APPENDIX_H.items():
        factor = routed_experts_factor(widening, 20, 0.2, 128)
        inputs = {"u": widening, "G": 20, "S": 0.2, "base": "Table 1, 2.40B, every expert cut into four"}
        widened = model("2.40B", experts=128 * factor, top_k=16, shared=4, expert_hidden=widening * 224)
        own_total, own_active = millions(widened)
        yield record(where, f"d_expert at u = {widening}", width, widening * SHAPES["2.40B"][3] / 4, inputs=inputs)
        yield record(where, f"n_e at u = {widening}, by Eq. 35", experts, 128 * factor, inputs=inputs)
        yield _millions(where, f"N_a at u = {widening}", active, own_active, inputs=inputs)
        yield record(where, f"N at u = {widening}", "2.4", own_total / 1e3, unit="B", inputs=inputs)
    most = max(float(experts) for _, experts, _ in APPENDIX_H.values())
    note = "Section 3 states this limit for the validation runs, but Appendix H already has 260 in the runs for fitting"
    yield record("Abstract and Section 3", "most experts in any experiment", "<=256", most, note=note)


def _counts() -> Records:
    runs = table_6()
    fitting = [run for run in runs if not run.validation]
    # Only the experiments on G use these numbers of experts among the fitting runs.
    marginal = [run for run in fitting if run.experts in (1, 2, 3, 4, 8, 16)]
    yield record("Abstract and Table 6", "experiments", "446", len(runs))
    yield record("Appendix C.1", "experiments for fitting", "268", len(fitting) - len(marginal))
    yield record("Appendix C.1", "small experiments on G alone", "90", len(marginal))
    yield record("Appendix C.1", "experiments for validation", "88", len(runs) - len(fitting))
    note = "446 counts experiments; groups of controlled experiments share settings, which Table 6 lists in each group"
    yield record("Table 6", "different settings among its rows", None, len({run.setting for run in runs}), note=note)


RANGES = (
    ("fitting", "G", "experts", 1, ("1", "20")),
    ("fitting", "S", "shared", 1, ("0.0", "0.7")),
    ("fitting", "N_a in M", "active", 1e6, ("30", "2.2e3")),
    ("fitting", "N in M", "total", 1e6, ("133", "3.4e3")),
    ("fitting", "D in B", "tokens", 1e9, ("10", "50")),
    ("validation", "G", "experts", 1, ("1", "20")),
    ("validation", "S", "shared", 1, ("0.0", "0.7")),
    ("validation", "N_a in M", "active", 1e6, ("453", "6.6e3")),
    ("validation", "N in M", "total", 1e6, ("2.4e3", "9e3")),
    ("validation", "D in B", "tokens", 1e9, ("10", "100")),
)
"""Ranges of the factors in Appendix L."""
SECTION_4_5 = "Section 4.5 has 2, as Table 6 does"
RANGE_NOTES = {
    ("validation", "G", "lowest"): SECTION_4_5,
    ("fitting", "S", "highest"): "six runs of Table 6 have S = 0.8",
    (
        "fitting",
        "N_a in M",
        "lowest",
    ): "the small experiments on G begin at 22M, the others at 31M, or 30.28M before rounding",
    ("validation", "N in M", "lowest"): "rows 358, 362 and 366 have N = 1301M",
}
SIZE_OF: dict[str, Callable[[Run], Number]] = {
    "total": lambda run: sizes(round(run.total / 1e6), round(run.active / 1e6))[0],
    "active": lambda run: sizes(round(run.total / 1e6), round(run.active / 1e6))[1],
}
"""Functions that compute a row's N and N_a in millions, by Eqs. 2 and 3."""


def _ranges() -> Records:
    runs = table_6()
    for group, name, field, unit, printed in RANGES:
        own = [run for run in runs if run.validation == (group == "validation")]
        for end, pick, text in zip(("lowest", "highest"), (min, max), printed, strict=True):
            value = pick(getattr(run, field) for run in own) / unit
            values = [Reading(value)]
            fitted = [run for run in own if run.index < 268]
            if fitted:
                without = pick(getattr(run, field) for run in fitted) / unit
                values.append(Reading(without, "a range of the 268 fitted runs, without the small ones on G"))
            if fitted and field in SIZE_OF:
                exact = pick(SIZE_OF[field](run) for run in fitted)
                values.append(Reading(exact, "a range of the 268 fitted runs, by Eqs. 2 and 3 without rounding up"))
            note = RANGE_NOTES.get((group, name, end), "")
            yield record("Appendix L", f"{end} {name}, {group}", text, *values, note=note)
    own = [run.experts for run in runs if run.validation]
    yield record("Section 4.5", "lowest G, validation", "2", min(own))


def _anomalies() -> Records:
    runs = table_6()
    block = [run for run in runs if 409 <= run.index <= 426]
    cells = {(run.tokens, run.experts) for run in block}
    every = {(tokens, experts) for tokens in (10e9, 20e9, 50e9) for experts in (2, 4, 6, 8, 10, 12)}
    missing = every - cells
    value = missing.pop()[0] / 1e9 if len(missing) == 1 else None
    note = "the row repeats row 413; the other rows from 409 to 426 combine three D with six G"
    yield record("Table 6", "D of row 419", "10", value, unit="B", note=note)
    steep = [run.index for run in runs if run.shared > 0.7]
    note = f"rows {', '.join(map(str, steep))}"
    yield record("Appendix L", "runs with S above the stated 0.7", "0", len(steep), note=note, implied=True)
    fitted = {run.setting: run.index for run in runs if not run.validation}
    again = {run.index: fitted[run.setting] for run in runs if run.validation and run.setting in fitted}
    note = f"rows {', '.join(map(str, again))} have the settings of rows {', '.join(map(str, again.values()))}"
    yield record("Appendix L", "validation runs that repeat a fitted setting", "0", len(again), note=note, implied=True)
    broken = Counter(run.experts for run in runs if run.experts % 1)
    note = "the other runs have G = 2.5 and S = 0.2: half a shared expert and two routed experts"
    yield record(
        "Table 6",
        "runs whose G is a whole number, as the count n_k + n_s of Eq. 2",
        "446",
        len(runs) - broken.total(),
        note=note,
        implied=True,
    )
