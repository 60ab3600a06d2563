"""Run ScaleBench (Li et al. 2026, arXiv 2604.22753): buy runs from a pool so that fitted laws extrapolate well.

    python benchmarks/scalebench.py --tables DIR/scalebench --out results.jsonl
    python benchmarks/scalebench.py --tables DIR/scalebench --out fits.jsonl --arm fit --tasks moe,farseer --laws 1,4

The benchmark has eight tasks and 65 laws, written in ``scalebench_laws.py`` as formulas of ``moejax fit --form``. The
folder contains its tables: TASK_train.parquet is the pool, and TASK_test.parquet the expensive target region. Without
--tables, the folder is looked up in MOEJAX_RUN_TABLES. Each finished law is a line of the output file and is not
computed again, so the same command resumes an interrupted run.

The arm ``bought`` uses the method of ``moejax next --modes``: a pilot planned from the prior, then three plans per
budget. Each plan uses the posterior modes given all earlier runs, and minimizes the sum of the variances in the target
region. Predictions are means over the posterior ("mean") or by its largest mode ("largest"). The arm ``fit`` is
``moejax fit`` on all runs of the pool. Scores follow the benchmark: R² on the target rows of all groups, at least -1.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scalebench_laws import FORMS, Form
from scalebench_modes import AskedModes

from moejax.experimental_design.criterion import posterior_arrays
from moejax.experimental_design.experiment_plan import RunBudget, exchange
from moejax.experimental_design.laplace_posterior import LaplacePosterior
from moejax.experimental_design.posterior_modes import FOLLOWED, MOST, Mode, Noise, distance
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Huber, Penalty, Squared
from moejax.fit.selection.metrics import predict
from moejax.laws.design import design_from
from moejax.laws.formula_law import FormulaLaw, formula_law

DOMAINS = range(1, 6)


@dataclass(frozen=True)
class Task:
    """The columns of a task's tables."""

    columns: dict[str, tuple[str, str]]
    """``Design`` field and table column of each letter in the formulas."""
    target: str
    cost: Callable[[Any], Any]
    shares: tuple[float, ...] = (0.01, 0.05, 0.1)
    """Budgets as shares of the pool's cost."""
    added: float = 0.0
    """Constant added to targets that may be negative, because fits use log losses; every law of the task has a constant
    term.
    """


TASKS: dict[str, Task] = {
    "parallel": Task(
        {"N": ("params_active", "num_params"), "S": ("streams", "parallel_size")},
        "loss",
        lambda rows: rows["num_params"],
    ),
    "vocab": Task(
        {
            "N": ("params_active", "non_vocab_parameters"),
            "V": ("vocab_size", "vocab_size"),
            "D": ("tokens", "num_characters"),
        },
        "unigram_normalized_loss",
        lambda rows: rows["non_vocab_parameters"] * rows["num_characters"],
        added=10.0,
    ),
    "domain_mixture": Task({}, "loss_domain_{}", lambda rows: 1.0 + 0 * rows["loss_domain_1"], (0.2, 0.35, 0.5)),
    "moe": Task(
        {"N": ("params_active", "dense_parameter_count"), "E": ("num_experts", "num_experts")},
        "loss_validation",
        lambda rows: rows["dense_parameter_count"] * rows["num_experts"],
    ),
    "data_constrained": Task(
        {
            "N": ("params_active", "params"),
            "D": ("tokens", "tokens"),
            "U": ("unique_tokens", "unique_tokens"),
        },
        "loss",
        lambda rows: 6 * rows["params"] * rows["tokens"],
    ),
    "lr_bsz": Task(
        {
            "lr": ("learning_rate", "lr"),
            "B": ("batch", "bsz"),
            "D": ("tokens", "data_size"),
            "N": ("params_active", "non_embedding_param_size"),
        },
        "lm_loss",
        lambda rows: 6 * rows["non_embedding_param_size"] * rows["data_size"],
    ),
    "sparsity": Task(
        {"P": ("total_over_active", "P"), "N": ("params_active", "N_active")},
        "loss",
        lambda rows: 6 * (rows["N_dense"] * rows["D1"] + rows["N_active"] * rows["D2"]),
        (0.2, 0.35, 0.5),
    ),
    "farseer": Task(
        {"N": ("params_active", "N"), "D": ("tokens", "D")}, "loss", lambda rows: 6 * rows["N"] * rows["D"]
    ),
}


@dataclass(frozen=True)
class Problem:
    """A law to fit to one pool, for one target or for several targets in one table."""

    law: type
    pool: Runs
    target: Runs
    run: np.ndarray
    """Index of the run of each row of the pool."""


@dataclass(frozen=True)
class Group:
    """Runs that are bought together, and their laws."""

    cost: np.ndarray
    problems: tuple[Problem, ...]


def _law(name: str, form: Form) -> type[FormulaLaw]:
    """Return the law of a form on its task's columns."""
    columns = {letter: ours for letter, (ours, _) in TASKS[name].columns.items()}
    if name == "domain_mixture":
        own = [f"{letter}{i}" for letter in "pd" for i in DOMAINS] if form.joint else ["p", "q1", "q2", "q3", "q4"]
        columns = {one: one for one in own}
    return formula_law(form.text, signs=form.signs, known=columns | {"loss": "loss"})


def groups(folder: Path, name: str, form: Form) -> list[Group]:
    """Return a task's groups, each with the laws of a form."""
    import pandas as pd

    pool, target = (pd.read_parquet(folder / f"{name}_{part}.parquet") for part in ("train", "test"))
    task, found = TASKS[name], []
    for group in sorted(pool["group"].unique()) if "group" in pool else [None]:
        near, far = (rows if group is None else rows[rows["group"] == group] for rows in (pool, target))
        cost = np.asarray(task.cost(near), float)
        make = _domain_problems if name == "domain_mixture" else functools.partial(_problems, name)
        found.append(Group(cost, tuple(make(form, near, far))))
    return found


def _problems(name: str, form: Form, near: Any, far: Any) -> Iterator[Problem]:
    task = TASKS[name]

    def runs(rows: Any) -> Runs:
        values = {ours: rows[theirs].to_numpy(float) for ours, theirs in task.columns.values()}
        loss = rows[task.target].to_numpy(float) + task.added
        return runs_from(design_from(values), loss, group=range(len(loss)))

    yield Problem(_law(name, form), runs(near), runs(far), np.arange(len(near)))


def _domain_problems(form: Form, near: Any, far: Any) -> Iterator[Problem]:
    """Return a law for each domain, or a joint law if domains share exponents."""
    share = "proportion_domain_{}".format
    law = _law("domain_mixture", form)

    def runs(rows: Any, domains: Sequence[int]) -> Runs:
        parts = []
        for domain in domains:
            if form.joint:
                values = {f"p{i}": rows[share(i)].to_numpy(float) for i in DOMAINS}
                values |= {f"d{i}": np.full(len(rows), float(i == domain)) for i in DOMAINS}
            else:
                others = [i for i in DOMAINS if i != domain]
                values = {"p": rows[share(domain)].to_numpy(float)}
                values |= {f"q{k}": rows[share(i)].to_numpy(float) for k, i in enumerate(others, 1)}
            parts.append(values | {"loss": rows[f"loss_domain_{domain}"].to_numpy(float)})
        every = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        loss = every.pop("loss")
        return runs_from(design_from(every), loss, group=range(len(loss)))

    for domains in [list(DOMAINS)] if form.joint else [[i] for i in DOMAINS]:
        number = np.tile(np.arange(len(near)), len(domains))
        yield Problem(law, runs(near, domains), runs(far, domains), number)


def score(problems: Sequence[Problem], predicted: Sequence[np.ndarray]) -> float:
    """Return R² over all target rows, at least -1; -1 if a value is not finite."""
    measured = np.concatenate([problem.target.loss for problem in problems])
    found = np.concatenate([np.asarray(values, float) for values in predicted])
    if not np.isfinite(found).all():
        return -1.0
    off, spread = np.sum((found - measured) ** 2), np.sum((measured - measured.mean()) ** 2)
    return float(np.clip(1 - off / spread, -1.0, 1.0))


PENALTIES: dict[str, Penalty] = {"huber": Huber(), "nats": Squared("nats"), "log": Squared()}


def fitted_to_all(found: Sequence[Group], penalty: Penalty, seed: int) -> tuple[float, float]:
    """Return R² in the target region and in the pool, by ``fit_law`` on all runs of the pool."""
    problems = [problem for group in found for problem in group.problems]
    fits = [fit_law(p.law, p.pool, penalty=penalty, seed=seed) for p in problems]
    far = score(problems, [predict(fit.law, p.target) for fit, p in zip(fits, problems, strict=True)])
    measured = np.concatenate([p.pool.loss for p in problems])
    near = np.concatenate([predict(fit.law, p.pool) for fit, p in zip(fits, problems, strict=True)])
    return far, float(1 - np.sum((near - measured) ** 2) / np.sum((measured - measured.mean()) ** 2))


PILOT = 0.3
"""Share of the first budget for the pilot."""
ROUNDS = 3
"""Number of plans per budget, each from fits to all earlier runs."""
PILOT_NOISE = 0.01


def _padded(posterior: LaplacePosterior, free: int) -> LaplacePosterior:
    """Return the law padded with unused coefficients, so that the laws of a task share compiled programs."""
    more = free - len(posterior.precision)
    return replace(
        posterior,
        precision=np.pad(posterior.precision, (0, more)) + np.diag(np.arange(free) >= free - more).astype(float),
        slopes=np.pad(posterior.slopes, ((0, 0), (0, more))),
        scores=np.pad(posterior.scores, ((0, 0), (0, more))),
        run_slopes=np.pad(posterior.run_slopes, ((0, 0), (0, more))),
        answer_slopes=np.pad(posterior.answer_slopes, ((0, 0), (0, more))),
    )


@dataclass
class Purchase:
    """The runs bought so far in one group, and the posterior modes of its laws."""

    group: Group
    seed: int
    widest: int
    """Number of coefficients of the task's largest law."""

    def __post_init__(self) -> None:
        self.searches = [
            AskedModes(p.law, p.pool, p.target.design, apart=distance(p.pool.design, p.target.design), seed=self.seed)
            for p in self.group.problems
        ]
        self.runs = len(self.group.cost)
        self.rows = len(self.group.problems[0].run) // self.runs
        """Rows of each run in each law's table."""
        self.several = len(self.searches) > 1 or self.rows > 1
        """True if runs have several outputs, each with its own law, so that modes of different laws do not compete."""
        self.free = max(len(search.middle) for search in self.searches) // self.rows
        self.trained = np.zeros(self.runs, bool)
        self.found: tuple[bytes, list[tuple[list[Mode], Noise]]] = (b"", [])

    @property
    def spent(self) -> float:
        """Return the spent share of the pool's cost."""
        return float(self.group.cost[self.trained].sum() / self.group.cost.sum())

    def modes(self) -> list[tuple[list[Mode], Noise]]:
        """Return modes and noise of every law given the runs so far; the search also starts at the previous modes."""
        if self.found[0] != self.trained.tobytes():
            near = [[mode.point for mode in modes] for modes, _ in self.found[1]] or [[] for _ in self.searches]
            found = [
                search.modes(self.trained[problem.run], near=points)
                for search, problem, points in zip(self.searches, self.group.problems, near, strict=True)
            ]
            self.found = self.trained.tobytes(), found
        return self.found[1]

    def predicted(self, mean: bool) -> list[np.ndarray]:
        """Return every law's predictions in the target region, as posterior means or by the largest mode."""
        if not self.trained.any():
            return [np.full(len(problem.target.loss), np.nan) for problem in self.group.problems]
        every = []
        for search, problem, (modes, noise) in zip(self.searches, self.group.problems, self.modes(), strict=True):
            trained = self.trained[problem.run]
            if mean:
                every.append(search.expected_losses(modes, trained, noise))
            else:
                every.append(search.losses(search.posteriors(modes[:1], trained, noise)[0].answers))
        return every

    def pilot(self, budget: float) -> None:
        """Buy the pilot runs: the most informative on average over laws drawn from the prior."""
        posteriors = []
        for search, problem in zip(self.searches, self.group.problems, strict=True):
            draws = [Mode(point=point, share=1 / MOST) for point in [search.middle, *search.starts[: FOLLOWED - 1]]]
            seen = search.posteriors(draws, np.zeros(len(problem.run), bool), Noise(level=PILOT_NOISE))
            seen = [one for one in seen if np.isfinite(one.slopes).all() and np.isfinite(one.answer_slopes).all()]
            posteriors += self.of_outputs(problem, [*seen, *seen, *seen][:MOST])
        if not posteriors:
            return
        for share in (PILOT, 1.0):
            if not self.trained.any():
                self.plan(posteriors, share * budget, self.free, rivals=False)

    def buy(self, budget: float) -> None:
        """Buy the runs that the current modes make most informative."""
        posteriors = []
        for search, problem, (modes, noise) in zip(self.searches, self.group.problems, self.modes(), strict=True):
            posteriors += self.of_outputs(problem, search.posteriors(modes, self.trained[problem.run], noise))
        if not self.several and len(posteriors) > 1:
            # Use one mode or all modes, so that few programs are compiled.
            posteriors += [replace(posteriors[0], weight=0.0)] * (MOST - len(posteriors))
        self.plan(posteriors, budget, 2 * self.free, rivals=not self.several)

    def of_outputs(self, problem: Problem, seen: list[LaplacePosterior]) -> list[LaplacePosterior]:
        """Return the posteriors; for several outputs, the part of the first posterior for each output."""
        if not self.several:
            return seen
        parts, answers = [], len(problem.target.loss) // self.rows
        for i in range(self.rows):
            own, asked = slice(i * self.runs, (i + 1) * self.runs), slice(i * answers, (i + 1) * answers)
            part = {"slopes": seen[0].slopes[own], "predicted": seen[0].predicted[own], "model": seen[0].model[own]}
            part |= {"answers": seen[0].answers[asked], "answer_slopes": seen[0].answer_slopes[asked]}
            parts.append(replace(seen[0], weight=1.0, **part))
        return parts

    def plan(self, posteriors: list[LaplacePosterior], budget: float, runs: int, rivals: bool) -> None:
        """Buy the runs that the method of ``moejax next`` chooses within a share of the pool's cost."""
        left = (budget - self.spent) * float(self.group.cost.sum())
        # What is trained is not trained again: it costs more than there is.
        prices = np.where(self.trained, 10 * float(self.group.cost.sum()), self.group.cost)
        if not (prices <= left).any():
            return
        arrays = posterior_arrays(
            [_padded(one, self.widest) for one in posteriors],
            rivals=rivals,
            region=True,
        )
        self.trained = self.trained | (exchange(arrays, prices, RunBudget(flops=left, runs=runs), None, sweeps=1) > 0)


def bought(group: Group, shares: Sequence[float], seed: int, widest: int) -> list[dict[str, Any]]:
    """Return the predictions in the target region at every budget and with all runs of the pool."""
    purchase, before, found = Purchase(group, seed, widest), 0.0, []
    for share in shares:
        for round_ in range(1, ROUNDS + 1):
            if not purchase.trained.any():
                purchase.pilot(share)
            else:
                purchase.buy(before + (share - before) * round_ / ROUNDS)
        found.append(_outcome(purchase))
        before = share
    purchase.trained = np.ones(purchase.runs, bool)
    return [*found, _outcome(purchase)]


def _outcome(purchase: Purchase) -> dict[str, Any]:
    return {
        "runs": int(purchase.trained.sum()),
        "cost": purchase.spent,
        "mean": purchase.predicted(mean=True),
        "largest": purchase.predicted(mean=False),
        "noise": [[noise.level, noise.growth, noise.tails] for _, noise in purchase.modes()]
        if purchase.trained.any()
        else [],
    }


PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "V-opt": {
        "lr_bsz": (-0.70, -0.06, 0.18),
        "domain_mixture": (0.57, 0.91, 0.95),
        "vocab": (0.96, 0.97, 0.98),
        "parallel": (-1.00, 0.69, 0.99),
        "moe": (0.67, 0.80, 0.80),
        "data_constrained": (0.58, 0.83, 0.85),
        "sparsity": (0.12, 0.39, 0.51),
        "farseer": (0.67, 0.87, 0.92),
    },
    "the paper's": {
        "lr_bsz": (-0.66, 0.00, 0.22, 0.04),
        "domain_mixture": (0.64, 0.89, 0.95, 0.81),
        "vocab": (0.96, 0.98, 0.98, 0.93),
        "parallel": (-1.00, 0.77, 0.99, 0.99),
        "moe": (0.59, 0.65, 0.83, 0.81),
        "data_constrained": (0.73, 0.85, 0.86, 0.79),
        "sparsity": (0.31, 0.44, 0.53, 0.37),
        "farseer": (0.60, 0.88, 0.93, 0.91),
    },
}
"""R² at the three budgets and with all runs of the pool, averaged over laws and 10 seeds (Table 2 of the paper)."""


def run(folder: Path, name: str, law: int, seed: int) -> dict[str, Any]:
    """Return the scores of one law with one seed, at the budgets and with all runs."""
    began, form, shares = time.process_time(), FORMS[name][law - 1], TASKS[name].shares
    found = groups(folder, name, form)
    # Laws of a task share the programs of its largest law; joint laws are larger than laws of one domain.
    widest = max(len(_law(name, other).formula.signs) for other in FORMS[name] if other.joint == form.joint)
    results = [bought(group, shares, seed, widest) for group in found]
    problems = [problem for group in found for problem in group.problems]
    row: dict[str, Any] = {"task": name, "law": law, "seed": seed}
    for kind in ("mean", "largest"):
        row[kind] = [
            score(problems, [values for group in results for values in group[i][kind]]) for i in range(len(shares) + 1)
        ]
    for kind in ("runs", "cost", "noise"):
        row[kind] = [[group[i][kind] for group in results] for i in range(len(shares) + 1)]
    return row | {"seconds": time.process_time() - began}


def fits(folder: Path, name: str, law: int, seed: int, penalty: str) -> dict[str, Any]:
    """Return the scores of ``moejax fit`` on all runs of the pool, in the target region and in the pool."""
    began = time.process_time()
    far, near = fitted_to_all(groups(folder, name, FORMS[name][law - 1]), PENALTIES[penalty], seed)
    row = {"task": name, "law": law, "seed": seed, "penalty": penalty, "far": far, "near": near}
    return row | {"seconds": time.process_time() - began}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return means and standard deviations by task, and the published means."""
    lines = [f"{'task':18}{'laws':>5}  {'ours, at the budgets and by all runs':44}  the paper's"]
    for name in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == name]
        scores = np.array([row["mean"] for row in own])
        ours = " ".join(f"{m:5.2f} ± {d:.2f}" for m, d in zip(scores.mean(axis=0), scores.std(axis=0), strict=True))
        theirs = " ".join(f"{value:5.2f}" for value in PUBLISHED["the paper's"][name])
        lines.append(f"{name:18}{len({row['law'] for row in own}):>5}  {ours}  {theirs}")
    return "\n".join(lines)


def main() -> None:
    """Compute the scores that are not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    given = os.environ.get("MOEJAX_RUN_TABLES")
    parser.add_argument(
        "--tables", type=Path, default=given and Path(given) / "scalebench", help="folder of the tables"
    )
    parser.add_argument("--out", type=Path, required=True, help="output file: one JSON line per law, task and seed")
    parser.add_argument("--arm", choices=("bought", "fit"), default="bought")
    parser.add_argument("--penalty", choices=list(PENALTIES), default="nats", help="penalty of the arm fit")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--laws", default=",".join(map(str, range(1, 11))), help="numbers, from 1")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the searches' starts")
    arguments = parser.parse_args()
    if arguments.tables is None or not arguments.tables.is_dir():
        parser.error("the folder of tables does not exist; give --tables, or set MOEJAX_RUN_TABLES")
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {(row["task"], row["law"], row["seed"], row.get("penalty")) for row in rows}
    penalty = arguments.penalty if arguments.arm == "fit" else None
    for seed in range(arguments.seeds):
        # Alternate between tasks, so that an interrupted run has some laws of each task.
        for law in map(int, arguments.laws.split(",")):
            for name in arguments.tasks.split(","):
                if law > len(FORMS[name]) or (name, law, seed, penalty) in done:
                    continue
                more = (
                    run(arguments.tables, name, law, seed)
                    if penalty is None
                    else fits(arguments.tables, name, law, seed, penalty)
                )
                rows.append(more)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(more) + "\n")
                said = [round(value, 3) for value in more.get("mean", [more.get("far"), more.get("near")])]
                print(f"{name} law {law}, seed {seed}: {said}  ({more['seconds']:.0f} s of processor)", flush=True)
    if penalty is None and rows:
        print(table(rows))


if __name__ == "__main__":
    main()
