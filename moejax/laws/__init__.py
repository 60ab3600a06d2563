"""Define scaling laws as pure functions, one law per file. Import a law from its file; ``LAWS`` finds it by name.

A law's file ends with its ``ENTRIES``. To add a law, add one file and its name here.
"""

from importlib import import_module

from moejax.laws.decision import DecisionRule
from moejax.laws.entry import LawEntry
from moejax.laws.published import Published

FILES = (
    "kaplan",
    "chinchilla",
    "data_constrained",
    "sparse_repeats",
    "over_training",
    "width_depth",
    "loss_compute",
    "error_from_loss",
    "accuracy_from_loss",
    "five_factor",
    "fewer_factors",
    "marginal",
    "sparsity",
    "isoflop_surface",
    "granularity",
    "expert_count",
    "routed",
    "dense_to_moe",
    "effective_params",
    "leverage",
    "hyperparameters",
    "step_law",
    "allocation",
    "resources",
)
"""Files of laws, in the order in which laws are listed."""

FILES_OF_CURVES = ("multi_power", "momentum")
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
