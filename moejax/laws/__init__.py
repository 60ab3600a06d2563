"""Scaling laws as pure functions: one law a file. Import a law from its file; ``LAWS`` finds it by name.

A law's file ends with its ``ENTRIES``; adding a law adds one file, and its name here.
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
"""The files that hold laws, in the order in which laws are listed."""

FILES_OF_CURVES = ("multi_power", "momentum")
"""The files of laws of whole loss curves. They read a schedule, and no table of runs: ``moejax curves`` fits them."""

ENTRIES: tuple[LawEntry, ...] = tuple(entry for file in FILES for entry in import_module(f"{__name__}.{file}").ENTRIES)
LAWS: dict[str, type] = {entry.name: entry.law for entry in ENTRIES}
"""Every law by its name."""
PUBLISHED: dict[str, dict[str, Published]] = {entry.name: dict(entry.published) for entry in ENTRIES}
"""Published constants by law and set; a law's first set is its default."""
ALIASES: dict[str, str] = {alias: entry.name for entry in ENTRIES for alias in entry.aliases}
"""Laws by other names, most often the first author of the paper."""
DECISIONS: dict[type, tuple[DecisionRule, ...]] = {entry.law: entry.decides for entry in ENTRIES if entry.decides}
"""Decisions of each law, by its name; a law without an entry decides nothing by itself."""
NOT_SEARCHED: dict[type, str] = {entry.law: entry.not_searched for entry in ENTRIES if entry.not_searched}
"""Laws that have another way to their coefficients than a search, with the reason."""

OF_CURVES: tuple[LawEntry, ...] = tuple(
    entry for file in FILES_OF_CURVES for entry in import_module(f"{__name__}.{file}").ENTRIES
)
CURVE_LAWS: dict[str, type] = {entry.name: entry.law for entry in OF_CURVES}
"""Every law of loss curves by its name."""
ALIASES_OF_CURVES: dict[str, str] = {alias: entry.name for entry in OF_CURVES for alias in entry.aliases}
"""Laws of loss curves by the first author of their paper."""


def called(law: type) -> str:
    """A law's name, as a command takes it; its class's where it has none, as a formula."""
    return next((name for name, other in LAWS.items() if other is law), law.__name__)
