"""Show proposed runs as a ``Result``, with each law's answer and the expected uncertainty, or as a study config."""

from __future__ import annotations

import dataclasses
import itertools
import pprint
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from moejax.architecture import Architecture
from moejax.design.build import changed_options
from moejax.experimental_design.candidates import Candidates, is_mostly_vocabulary
from moejax.experimental_design.experiment_plan import RunBudget
from moejax.experimental_design.propose import Proposal
from moejax.fit.uncertainty.uncertainty import COVARIANCES
from moejax.laws.chips import Chip, flops_per_hour
from moejax.laws.design import known, value_of
from moejax.quantities import format
from moejax.result import NOT_DETERMINED, Column, Result, Table, Written
from moejax.wording import argument, counted, listed


def study_text(name: str, chosen: Candidates, recipe: Mapping[str, Any], says: str) -> str:
    """Return a config file for ``moejax study --config``: a model per architecture, with its token budgets.

    The study fits no laws, because its few runs extend a table.

    Args:
      recipe: settings that all runs share, in the form of a config; ``budgets_tokens`` are added here.
      says: docstring of the file.
    """
    budgets: dict[Architecture, list[int]] = {}
    for architecture, count in zip(chosen.architectures, chosen.design.tokens, strict=True):
        budgets.setdefault(architecture, []).append(int(count))
    budgets = {architecture: sorted(set(counts)) for architecture, counts in budgets.items()}
    names = dict(zip(chosen.architectures, _labels(chosen), strict=True))
    every = sorted({count for counts in budgets.values() for count in counts})
    models = {names[a]: changed_options(a) for a in budgets}
    recipes = {names[a]: {"budgets_tokens": counts} for a, counts in budgets.items() if counts != every}
    shared = {**recipe, "budgets_tokens": every}
    return f'''"""{says}

Command:  moejax study --config=FILE{_source(recipe)}

Then fit the table and these runs together, in Python:

    import moejax as mj
    import pandas as pd

    tables = [mj.read_runs("TABLE").frame, pd.read_parquet("runs/{name}/runs.parquet")]
    fit = mj.fit(pd.concat(tables, join="inner"), "LAW")
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the config of the study."""
    config = ConfigDict()
    config.name = "{name}"
    config.seed = 0
    config.models = {_written(models)}
    config.recipe = {_written(shared)}
    config.recipes = {_written(recipes)}
    # These runs are fitted together with the table, not alone.
    config.analysis = {{"laws": ()}}
    return config
'''


def _source(recipe: Mapping[str, Any]) -> str:
    data = recipe.get("data", {})
    return "" if data.get("source") or data.get("mixture") else " --config.recipe.data.source=DATA"


def names_of(architectures: Sequence[Architecture], labels: Sequence[str] = ()) -> list[str]:
    """Return the labels, or names from width and experts where labels are empty; different architectures with equal
    names are numbered."""
    names: dict[Architecture, str] = {}
    taken: dict[str, int] = {}
    for architecture, label in zip(architectures, labels or itertools.repeat(""), strict=False):
        if architecture not in names:
            plain = label or _name(architecture)
            taken[plain] = taken.get(plain, 0) + 1
            names[architecture] = plain if taken[plain] == 1 else f"{plain}-{taken[plain]}"
    return [names[architecture] for architecture in architectures]


def _name(a: Architecture) -> str:
    if not a.is_moe:
        return f"dense-{a.model_dim}x{a.num_layers}"
    shared = f"-{a.num_shared_experts}s" if a.num_shared_experts else ""
    return f"moe-{a.model_dim}x{a.num_layers}-{a.num_experts}e{a.top_k}{shared}"


def _written(value: Any) -> str:
    return textwrap.indent(_nested(value), "    ").lstrip()


def _nested(value: Any) -> str:
    """Return a dictionary's source with one entry per line; nested dictionaries take a single line if they fit."""
    if not isinstance(value, dict) or not value:
        return pprint.pformat(value, sort_dicts=False, underscore_numbers=True, compact=True, width=100)
    lines = []
    for name, one in value.items():
        flat = pprint.pformat(one, sort_dicts=False, underscore_numbers=True, width=10_000)
        lines.append(f"    {name!r}: {flat if len(flat) < 100 else textwrap.indent(_nested(one), '    ').lstrip()},")
    return "\n".join(["{", *lines, "}"])


SHORT = {"params_total": "total", "params_active": "active", "num_experts": "experts", "num_shared_experts": "shared"}
"""Short names of sizes in headings."""


def summary(proposal: Proposal) -> Result:
    """Return a table per question, the runs to train, and the expected uncertainty of the answers after them."""
    titles = proposal.titles
    chosen = proposal.candidates.only(proposal.plan.order)
    return Result(
        warnings=[*_warnings(proposal, titles), *_mostly_vocabulary(chosen)],
        tables=[
            *(_known(proposal, title, i) for i, title in enumerate(titles)),
            _to_train(proposal, chosen),
        ],
        notes=list(_expected(proposal, titles)),
        main=-1,
        data=_as_data(proposal, chosen, titles),
    )


def _warnings(proposal: Proposal, titles: Sequence[str]) -> Iterator[str]:
    """Yield the warnings of the fits, and warnings about answers that the runs so far do not identify."""
    plan = proposal.plan
    for name in proposal.by_modes:
        yield f"{name}: the plan uses all modes of the law's posterior, which includes a prior, instead of a fit."
        noise = proposal.noises[name]
        if noise.tails:
            yield (
                f"{name}: a few runs are far from the law that fits the others, so they get less weight (Student's t "
                f"noise with {noise.tails:g} degrees of freedom). Check their logs, and whether the law holds at "
                "their sizes."
            )
        if noise.growth:
            times = float(noise.weights(np.log([10.0]))[0] ** -0.5)
            yield (
                f"{name}: noise grows by a factor of {times:.2g} per factor of 10 in the distance from the target, so "
                f"distant runs get less weight."
            )
    for name, fit in proposal.fits.items():
        yield from (f"{name}: {sentence}" for sentence in fit.warnings)
        if values := proposal.assumed.get(name):
            told = ", ".join(f"{one} = {value:g}" for one, value in values.items())
            yield f"{name}: the plan uses published values ({told}), because the runs do not determine them."
    for name, lost, lost_after in zip(proposal.posteriors, plan.unidentified, plan.still_unidentified, strict=True):
        for title, was, remains in zip(titles, lost, lost_after, strict=True):
            if was:
                more = f"raise {argument('flops')} or {argument('most')}"
                ending = f"would not identify it either; {more}" if remains else "would identify it"
                yield f"The runs so far do not identify {title} under {name}; the proposed runs {ending}."


def _mostly_vocabulary(chosen: Candidates) -> Iterator[str]:
    """Warn about runs whose parameters are mostly vocabulary, because these give little information about a law."""
    many = [a for a in chosen.architectures if is_mostly_vocabulary(a)]
    if many:
        sizes = listed([f"{size:,}" for size in sorted({one.vocab_size for one in many})])
        yield (
            f"In {len(many)} of the {len(chosen)} runs, more than half of the active parameters belong to the "
            f"vocabulary ({sizes} tokens). Pass your vocabulary ({argument('vocab_size')}), or plan larger runs."
        )


def _known(proposal: Proposal, title: str, number: int) -> Table:
    columns = (
        Column("law"),
        Column("share of posterior" if proposal.by_modes else "Akaike weight", ".2f"),
        Column("current answer", format),
        Column("standard deviation" if proposal.by_modes else "standard error", spread),
    )
    rows = [
        [
            name,
            posterior.weight,
            float(np.exp(posterior.answers[number])),
            Written(None, "not identified by these runs") if lost[number] else _deviation(proposal, name, number),
        ]
        for (name, posterior), lost in zip(proposal.posteriors.items(), proposal.plan.unidentified, strict=True)
    ]
    return Table(title, columns, rows, list(_methods(proposal)))


def _methods(proposal: Proposal) -> Iterator[str]:
    """Yield sentences about the method of each law's uncertainty."""
    for kind in dict.fromkeys(proposal.covariances.values()):
        yield f"Standard errors of the answer's logarithm: {COVARIANCES[kind]}."
    if proposal.by_modes:
        yield (
            "Standard deviation of the answer's logarithm: over the modes of the posterior, each with a Laplace "
            "approximation."
        )
    elif others := [name for name in proposal.posteriors if name not in proposal.covariances]:
        yield (
            f"{listed(others)}: standard deviation of the answer's logarithm by a Laplace approximation around "
            "published constants."
        )


def _deviation(proposal: Proposal, name: str, number: int) -> float | Written:
    """Return the uncertainty of an answer under a law: the fit's standard error, or the posterior's deviation."""
    if name in proposal.fits and not proposal.fits[name].converged:
        return Written(None, "unknown, because the search did not converge")
    if name not in proposal.standard_errors:
        return float(proposal.posteriors[name].deviations[number])
    error = float(proposal.standard_errors[name][number])
    return error if np.isfinite(error) else Written(None, NOT_DETERMINED)


def spread(deviation: float) -> str:
    """Return a standard deviation of a logarithm in percent, or as a factor if it is large."""
    return f"{deviation:.2%}" if deviation < 0.3 else f"a factor {np.exp(min(deviation, 700.0)):.3g}"


def with_chip_hours(result: Result, proposal: Proposal, budget: RunBudget, chip: Chip, mfu: float) -> Result:
    """Add the budget, and the proposed runs in FLOPs and in chip-hours at a share ``mfu`` of the chip's peak."""
    per_hour = flops_per_hour(chip.flops_per_second, mfu)
    hours = proposal.candidates.only(proposal.plan.order).causal_flops.sum() / per_hour
    given = f"{budget.flops / per_hour:.3g} chip-hours" if budget.causal else f"{budget.flops:.3g} FLOPs"
    counted = "without masked attention scores" if proposal.candidates.architectures else "the candidates' FLOPs"
    note = (
        f"Budget: {given}. These runs: {result.data['flops']:.3g} FLOPs, {hours:.3g} chip-hours of {chip.name} at "
        f"{mfu:.0%} of {chip.flops_per_second:.3g} FLOP/s (--chip, --mfu; {counted})."
    )
    data = {
        "budget_flops": None if budget.causal else budget.flops,
        "budget_chip_hours": budget.flops / per_hour if budget.causal else None,
        "chip_hours": float(hours),
    }
    assumed = {"chip": chip.name, "chip_flops": chip.flops_per_second, "mfu": mfu}
    return dataclasses.replace(result, notes=[*result.notes, note], data=result.data | data | assumed)


def _to_train(proposal: Proposal, chosen: Candidates) -> Table:
    """Return a table of sizes, costs and remaining uncertainty; for runs from a table, also all inputs of the laws."""
    wanted = ["params_total", "params_active", *(() if chosen.architectures else proposal.inputs), "tokens"]
    sizes = [name for name in dict.fromkeys(wanted) if value_of(chosen.design, name) is not None and name != "flops"]
    numbers = [*(value_of(chosen.design, name) for name in sizes), chosen.flops, np.cumsum(chosen.flops)]
    shown = (
        Column("run"),
        *(Column(proposal.columns.get(name, SHORT.get(name, name)), format) for name in sizes),
        Column("FLOPs", ".3g", keys=("flops",)),
        Column("FLOPs, cumulative", ".3g", keys=("flops_cumulative",)),
        Column("deviation left", ".3g"),
    )
    names = _labels(chosen)
    repeated = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
    notes = [f"Rows of {name} are separate runs of one model with different token counts." for name in repeated]
    rows = zip(names, *(map(float, values) for values in numbers), np.sqrt(proposal.plan.left), strict=True)
    return Table("To train next, in order of information per FLOP", shown, list(rows), notes)


def _labels(chosen: Candidates) -> Sequence[str]:
    """Return the names of the runs in the study config, or their labels or row numbers."""
    if chosen.architectures:
        return names_of(chosen.architectures, chosen.labels)
    return chosen.labels or [str(i + 1) for i in range(len(chosen))]


def _expected(proposal: Proposal, titles: Sequence[str]) -> Iterator[str]:
    plan = proposal.plan
    if proposal.shared is None:
        yield (
            "The noise of all runs is assumed to be independent. To estimate the noise that runs of a group share, the "
            "table needs more groups than coefficients, with several runs each."
        )
    else:
        yield (
            f"Runs of a group share {proposal.shared:.0%} of the variance around the law, estimated from residuals. "
            f"Proposed runs of one model are assumed to share the same part."
        )
    for title, before, after in zip(titles, plan.before, plan.after, strict=True):
        yield f"{title}: these runs are expected to leave {after / before:.0%} of the standard deviation."
    if plan.bound:
        shapes = ("vocab_size", "sequence_length") if proposal.candidates.architectures else ()
        others = map(argument, ("candidates", *shapes))
        yield (
            f"No choice among these {counted(len(proposal.candidates), 'candidate')} within this budget leaves less "
            f"than {np.sqrt(plan.bound):.3g} of the deviation; these runs leave {np.sqrt(plan.left[-1]):.3g}. Other "
            f"candidates ({listed(others, 'or')}) may leave less."
        )


def _as_data(proposal: Proposal, chosen: Candidates, titles: Sequence[str]) -> dict[str, Any]:
    plan = proposal.plan
    sizes = known(chosen.design)
    return {
        "noise": proposal.noise,
        "noise_of_modes": {name: dataclasses.asdict(one) for name, one in proposal.noises.items()},
        "intraclass_correlation": proposal.shared,
        "laws": {
            name: {
                "share_of_posterior" if proposal.by_modes else "akaike_weight": posterior.weight,
                "assumed": dict(proposal.assumed.get(name, {})),
                "answers": dict(zip(titles, np.exp(posterior.answers).tolist(), strict=True)),
                "deviation_of_log": dict(zip(titles, posterior.deviations.tolist(), strict=True)),
                "unidentified": [t for t, u in zip(titles, plan.unidentified[i], strict=True) if u],
                "still_unidentified": [t for t, u in zip(titles, plan.still_unidentified[i], strict=True) if u],
            }
            for i, (name, posterior) in enumerate(proposal.posteriors.items())
        },
        "runs": [
            {
                "label": label,
                **{name: float(values[i]) for name, values in sizes.items()},
                "flops": float(chosen.flops[i]),
                "variance_left": float(plan.left[i]),
            }
            for i, label in enumerate(_labels(chosen))
        ],
        "flops": float(chosen.flops.sum()),
        "deviation_of_log_before": dict(zip(titles, plan.before.tolist(), strict=True)),
        "deviation_of_log_after": dict(zip(titles, plan.after.tolist(), strict=True)),
        "variance_left_at_least": plan.bound,
    }
