"""Zhao et al. (2025): the experiments (Tables 1 and 6, Appendices H and L), counted and held to Eqs. 2 and 3."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from moejax.architecture import Architecture
from moejax.laws.conventions import PARAMS
from moejax.laws.five_factor_practice import routed_experts_factor
from moejax.reproduce.record import Number, Reading, Record, Records, recorder

record = recorder("zhao")

UP = "rounded up to whole millions"

SHAPES = {
    "247M": (12, 8, 512, 384, "247", "48"),
    "496M": (12, 12, 768, 512, "496", "99"),
    "907M": (12, 16, 1024, 704, "907", "181"),
    "2.40B": (20, 20, 1280, 896, "2.40", "476"),
    "3.96B": (24, 24, 1536, 1024, "3.96", "793"),
}
"""Table 1: layers, heads of 64, hidden size, expert size; N as printed, N_a in millions. 32 experts, 4 + 1 active."""

SIZES_BY_EXPERTS = {
    "247M": {16: "133", 32: "247", 64: "473", 128: "926"},
    "496M": {16: "269", 32: "496", 64: "949", 128: "1855"},
    "907M": {16: "492", 32: "907", 64: "1738", 128: "3399"},
    "2.40B": {16: "1301", 32: "2404", 64: "4604", 128: "9008"},
    "3.96B": {32: "3964"},
}
"""Table 6: N in millions when the routed experts of Table 1 are halved or multiplied."""

ACTIVE_BY_WIDENING = {
    "247M": {0.5: "31", 1: "48"},
    "496M": {0.5: "64", 1: "99", 2: "170", 4: "312", 6: "453"},
    "907M": {0.5: "116", 1: "181", 2: "310", 4: "570", 6: "829"},
    "2.40B": {0.5: "304", 1: "476", 2: "820", 4: "1508", 6: "2196"},
    "3.96B": {1: "793"},
}
"""Table 6: N_a in millions when Table 1's experts become u times as wide and fewer (Appendix H)."""

INFERRED = {"453": 2, "566": 3}
"""Table 6: N_a in millions of the 3.96B shape when the active experts together are so many of Table 1's wide."""

NO_SHAPE = (
    "22",
    "30",
    "41",
    "93",
    "121",
    "175",
    "239",
    "240",
    "340",
    "1209",
    "1441",
    "1960",
    "2479",
    "3517",
    "6632",
    "7255",
)
"""Table 6: sizes in millions whose layers and widths are printed nowhere."""

APPENDIX_H = {
    0.5: ("112", "260", "303"),
    1: ("224", "128", "476"),
    2: ("448", "62", "819"),
    4: ("896", "29", "1507"),
    6: ("1344", "18", "2196"),
}
"""At G = 20, S = 0.2: u, and d_expert, n_e and N_a in millions."""


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
        """All that tells two experiments apart."""
        return self.active, self.total, self.tokens, self.experts, self.shared


def table_6() -> list[Run]:
    """The 446 configurations of Zhao et al. (2025), Table 6."""
    with (files("moejax.reproduce") / "zhao_table_6.csv").open() as file:
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
    """Everything that can be counted."""
    yield from _sizes()
    yield from _appendix_h()
    yield from _counts()
    yield from _ranges()
    yield from _anomalies()


def _shape(name: str, *, experts: Number = 32, top_k: Number = 4, shared: Number = 1, expert_hidden: Any = None) -> Any:
    layers, heads, hidden, expert, *_ = SHAPES[name]
    return Architecture(
        vocab_size=50_000,
        model_dim=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=64,
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=shared,
        expert_hidden=expert_hidden or expert,
    )


def _total(architecture: Any) -> float:
    return PARAMS["zhao"].total(architecture) / 1e6


def _active(architecture: Any) -> float:
    return PARAMS["zhao"].active(architecture) / 1e6


def _millions(where: str, quantity: str, printed: str, value: Number, **rest: Any) -> Record:
    return record(where, quantity, printed, value, Reading(value, UP, "up"), unit="M", **rest)


def _sizes() -> Records:
    for name, (*_, total, active) in SHAPES.items():
        value, where = _total(_shape(name)), "Table 1"
        if name.endswith("B"):
            yield record(where, f"total size of the {name} model", total, value / 1e3, unit="B")
        else:
            yield _millions(where, f"total size of the {name} model", total, value)
        yield _millions(where, f"activated size of the {name} model", active, _active(_shape(name)))
    for name, sizes in SIZES_BY_EXPERTS.items():
        for experts, printed in sizes.items():
            value = _total(_shape(name, experts=experts))
            inputs = {"shape": f"Table 1, {name}", "routed experts": experts}
            note = "Table 1 prints the same shape as 2.40B" if printed == "2404" else ""
            yield _millions("Table 6", f"N = {printed}M", printed, value, inputs=inputs, note=note)
    for name, sizes in ACTIVE_BY_WIDENING.items():
        for widening, printed in sizes.items():
            value = _active(_shape(name, expert_hidden=widening * SHAPES[name][3]))
            inputs = {"shape": f"Table 1, {name}", "u": widening}
            yield _millions("Table 6", f"N_a = {printed}M at N = {name}", printed, value, inputs=inputs)
    for printed, wide in INFERRED.items():
        value = _active(_shape("3.96B", top_k=wide, shared=0))
        reading = f"the 3.96B shape of Table 1 with G·d_expert = {wide}·1024, which is printed nowhere"
        yield record("Table 6", f"N_a = {printed}M at N = 3.96B", printed, None, Reading(value, reading), unit="M")
    for printed in NO_SHAPE:
        note = "the layers and widths of this size are not printed"
        yield record("Table 6", f"size {printed}M", printed, None, unit="M", note=note)


def _appendix_h() -> Records:
    where = "Appendix H"
    for widening, (width, experts, active) in APPENDIX_H.items():
        factor = routed_experts_factor(widening, 20, 0.2, 128)
        inputs = {"u": widening, "G": 20, "S": 0.2, "base": "Table 1, 2.40B, every expert cut into four"}
        model = _shape("2.40B", experts=128 * factor, top_k=16, shared=4, expert_hidden=widening * 224)
        yield record(where, f"d_expert at u = {widening}", width, widening * SHAPES["2.40B"][3] / 4, inputs=inputs)
        yield record(where, f"n_e at u = {widening}, by Eq. 35", experts, 128 * factor, inputs=inputs)
        yield _millions(where, f"N_a at u = {widening}", active, _active(model), inputs=inputs)
        yield record(where, f"N at u = {widening}", "2.4", _total(model) / 1e3, unit="B", inputs=inputs)
    most = max(float(experts) for _, experts, _ in APPENDIX_H.values())
    note = "Section 3 says so of the validation, and Appendix H has 260 already in the runs for fitting"
    yield record("Abstract and Section 3", "most experts in any experiment", "<=256", most, note=note)


def _counts() -> Records:
    runs = table_6()
    fitting = [run for run in runs if not run.validation]
    # The experiments on G alone use whole numbers of experts that no other fitting run uses.
    marginal = [run for run in fitting if run.experts in (1, 2, 3, 4, 8, 16)]
    yield record("Abstract and Table 6", "experiments", "446", len(runs))
    yield record("Appendix C.1", "experiments for fitting", "268", len(fitting) - len(marginal))
    yield record("Appendix C.1", "small experiments on G alone", "90", len(marginal))
    yield record("Appendix C.1", "experiments for validation", "88", len(runs) - len(fitting))
    yield record(
        "Appendix C.1",
        "different settings among the experiments",
        "446",
        len({run.setting for run in runs}),
        note="the groups of controlled experiments share settings, which are listed once in each",
    )


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
"""Appendix L: the ranges of the factors."""
SECTION_4_5 = "Section 4.5 has 2, as Table 6 does"
RANGE_NOTES = {
    ("validation", "G", "lowest"): SECTION_4_5,
    ("fitting", "S", "highest"): "six runs of Table 6 have S = 0.8",
    ("fitting", "N_a in M", "lowest"): "the small experiments on G begin at 22M, the others at 31M",
    ("validation", "N in M", "lowest"): "rows 358, 362 and 366 have N = 1301M",
}


def _ranges() -> Records:
    runs = table_6()
    for group, name, field, unit, printed in RANGES:
        own = [run for run in runs if run.validation == (group == "validation")]
        for end, pick, text in zip(("lowest", "highest"), (min, max), printed, strict=True):
            value = pick(getattr(run, field) for run in own) / unit
            without = pick(getattr(run, field) for run in own if run.index < 268 or run.validation) / unit
            small = Reading(without, "a range of the 268 fitted runs, without the small ones on G")
            note = RANGE_NOTES.get((group, name, end), "")
            yield record("Appendix L", f"{end} {name}, {group}", text, value, small, note=note)
    own = [run.experts for run in runs if run.validation]
    yield record("Section 4.5", "lowest G, validation", "2", min(own))


def _anomalies() -> Records:
    runs = table_6()
    block = [run for run in runs if 409 <= run.index <= 426]
    cells = {(run.tokens, run.experts) for run in block}
    every = {(tokens, experts) for tokens in (10e9, 20e9, 50e9) for experts in (2, 4, 6, 8, 10, 12)}
    missing = every - cells
    value = missing.pop()[0] / 1e9 if len(missing) == 1 else None
    note = "the row repeats row 413, and rows 409 to 426 otherwise cross three D with six G"
    yield record("Table 6", "D of row 419", "10", value, unit="B", note=note)
    steep = [run.index for run in runs if run.shared > 0.7]
    note = f"rows {', '.join(map(str, steep))}"
    yield record("Appendix L", "runs with S above the stated 0.7", "0", len(steep), note=note, implied=True)
    fitted = {run.setting: run.index for run in runs if not run.validation}
    again = {run.index: fitted[run.setting] for run in runs if run.validation and run.setting in fitted}
    note = f"rows {', '.join(map(str, again))} have the settings of rows {', '.join(map(str, again.values()))}"
    yield record("Appendix L", "validation runs that repeat a fitted setting", "0", len(again), note=note, implied=True)
    broken = Counter(run.experts for run in runs if run.experts % 1)
    note = "they have G = 2.5 with S = 0.2, half a shared expert and two routed ones"
    yield record(
        "Table 6",
        "runs whose G is a whole number, as the count n_k + n_s of Eq. 2",
        "446",
        len(runs) - broken.total(),
        note=note,
        implied=True,
    )
