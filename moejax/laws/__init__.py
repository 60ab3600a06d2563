"""Define scaling laws as pure functions, one law per file. Import a law from its file; ``LAWS`` finds it by name.

A law's file ends with its ``ENTRIES``. To add a law, add one file and its name here; another package declares its
``LawEntry`` as an entry point of ``moejax.laws``. The mappings below are filled at their first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from moejax.errors import UserError
from moejax.plugins import LazyDict, with_plugins
from moejax.wording import did_you_mean

if TYPE_CHECKING:
    from moejax.laws.claim import Claim
    from moejax.laws.decision import DecisionRule
    from moejax.laws.law import LawEntry, Published

FILES = (
    "dense.kaplan",
    "dense.chinchilla",
    "dense.data_constrained",
    "mixtures.sparse_repeats",
    "dense.over_training",
    "dense.width_depth",
    "dense.loss_compute",
    "scores.error_from_loss",
    "scores.accuracy_from_loss",
    "mixtures.five_factor",
    "mixtures.fewer_factors",
    "mixtures.marginal",
    "mixtures.sparsity",
    "mixtures.isoflop_surface",
    "mixtures.granularity",
    "mixtures.expert_count",
    "mixtures.routed",
    "mixtures.dense_to_moe",
    "mixtures.effective_params",
    "mixtures.leverage",
    "budget.hyperparameters",
    "budget.step_law",
    "budget.allocation",
    "budget.resources",
)
"""Files of laws, in the order in which laws are listed."""

FILES_OF_CURVES = ("curves.multi_power", "curves.momentum")
"""Files of laws of whole loss curves. They read a schedule instead of a table of runs; ``moejax curves`` fits them."""


@functools.cache
def entries() -> tuple[LawEntry, ...]:
    """Return the entries of all laws; laws of other packages come last."""
    from moejax.laws.law import LawEntry

    own = {entry.name: entry for file in FILES for entry in import_module(f"{__name__}.{file}").ENTRIES}
    return tuple(with_plugins(own, "moejax.laws", LawEntry, lambda entry: entry.aliases).values())


LAWS: LazyDict[str, type] = LazyDict(lambda: {entry.name: entry.law for entry in entries()}, "moejax.laws")
"""Laws by name."""
PUBLISHED: LazyDict[str, dict[str, Published]] = LazyDict(
    lambda: {entry.name: dict(entry.published) for entry in entries()}
)
"""Published constants by law and set; the first set of a law is its default."""
ALIASES: LazyDict[str, str] = LazyDict(lambda: {alias: entry.name for entry in entries() for alias in entry.aliases})
"""Aliases of laws, usually the first author of the paper."""
DECISIONS: LazyDict[type, tuple[DecisionRule, ...]] = LazyDict(
    lambda: {entry.law: entry.decides for entry in entries() if entry.decides}
)
"""Decisions of each law; laws without decisions are missing."""
CLAIMS: LazyDict[str, Callable[[], Claim]] = LazyDict(
    lambda: {
        f"{entry.law.__module__.rpartition('.')[2]}.{name}": make
        for entry in entries()
        for name, make in entry.claims.items()
    }
)
"""Claims with published constants by file and function; closed forms without constants are not included."""
NOT_SEARCHED: LazyDict[type, str] = LazyDict(
    lambda: {entry.law: entry.not_searched for entry in entries() if entry.not_searched}
)
"""Laws whose coefficients are determined without a search, with the reason."""

OF_CURVES: tuple[LawEntry, ...] = tuple(
    entry for file in FILES_OF_CURVES for entry in import_module(f"{__name__}.{file}").ENTRIES
)
CURVE_LAWS: dict[str, type] = {entry.name: entry.law for entry in OF_CURVES}
"""Laws of loss curves by name."""
ALIASES_OF_CURVES: dict[str, str] = {alias: entry.name for entry in OF_CURVES for alias in entry.aliases}
"""Aliases of laws of loss curves: the first author of the paper."""


def called(law: type) -> str:
    """Return a law's name in commands; for an unregistered law, such as a formula, return its class name."""
    return next((name for name, other in LAWS.items() if other is law), law.__name__)


def law_name(name: str) -> str:
    """Return the name of a law from its name or alias.

    Raises:
      UserError: the name is unknown; the message suggests similar names.
    """
    asked = name.strip().lower().replace("-", "_")
    known = ALIASES.get(asked, asked)
    if asked in CURVE_LAWS or asked in ALIASES_OF_CURVES:
        raise UserError(f"'{name}' is a law of loss curves and reads a schedule; use it with moejax curves.")
    if known not in LAWS and ("/" in name or Path(name).suffix):
        raise UserError(f"There is no file {name}; give a fit's fit.json or its folder, or the name of a law.")
    if known not in LAWS:
        raise UserError(f"There is no law '{name}'; {did_you_mean(asked, [*LAWS, *ALIASES])}")
    return known


def law_class(name: str) -> type:
    """Return the class of a law from its name or alias.

    Raises:
      UserError: the name is unknown; the message suggests similar names.
    """
    return LAWS[law_name(name)]
