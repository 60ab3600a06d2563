"""Define scaling laws as pure functions, one law per file. Import a law from its file; ``LAWS`` finds it by name.

A law's file ends with its ``ENTRIES``. To add a law, add one file and its name here.
"""

from collections.abc import Callable
from importlib import import_module

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

ENTRIES: tuple[LawEntry, ...] = tuple(entry for file in FILES for entry in import_module(f"{__name__}.{file}").ENTRIES)
LAWS: dict[str, type] = {entry.name: entry.law for entry in ENTRIES}
"""Laws by name."""
PUBLISHED: dict[str, dict[str, Published]] = {entry.name: dict(entry.published) for entry in ENTRIES}
"""Published constants by law and set; the first set of a law is its default."""
ALIASES: dict[str, str] = {alias: entry.name for entry in ENTRIES for alias in entry.aliases}
"""Aliases of laws, usually the first author of the paper."""
DECISIONS: dict[type, tuple[DecisionRule, ...]] = {entry.law: entry.decides for entry in ENTRIES if entry.decides}
"""Decisions of each law; laws without decisions are missing."""
CLAIMS: dict[str, Callable[[], Claim]] = {
    f"{entry.law.__module__.rpartition('.')[2]}.{name}": make
    for entry in ENTRIES
    for name, make in entry.claims.items()
}
"""Claims with published constants by file and function; closed forms without constants are not included."""
NOT_SEARCHED: dict[type, str] = {entry.law: entry.not_searched for entry in ENTRIES if entry.not_searched}
"""Laws whose coefficients are determined without a search, with the reason."""

OF_CURVES: tuple[LawEntry, ...] = tuple(
    entry for file in FILES_OF_CURVES for entry in import_module(f"{__name__}.{file}").ENTRIES
)
CURVE_LAWS: dict[str, type] = {entry.name: entry.law for entry in OF_CURVES}
"""Laws of loss curves by name."""
ALIASES_OF_CURVES: dict[str, str] = {alias: entry.name for entry in OF_CURVES for alias in entry.aliases}
"""Aliases of laws of loss curves: the first author of the paper."""


def called(law: type) -> str:
    """Return the name of a law as used in commands; for a law without one, such as a formula, the name of its class."""
    return next((name for name, other in LAWS.items() if other is law), law.__name__)
