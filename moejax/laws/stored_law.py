"""Refer to a law's class in a file: by module and name, by its formula, or by the two laws of a chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moejax.errors import UserError
from moejax.laws import CURVE_LAWS, LAWS, formula_law
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.scores.chained_law import ChainedLaw, chained_law

OWN = "moejax.laws."


def reference_to(cls: type) -> dict[str, Any]:
    """Return a reference to a law's class as plain data."""
    if issubclass(cls, ChainedLaw):
        of_loss, of_score = cls.links
        return {"loss_law": reference_to(of_loss), "score_law": reference_to(of_score)}
    if issubclass(cls, FormulaLaw):
        return formula_law.stored(cls)
    return {"module": cls.__module__, "class": cls.__qualname__}


def law_of(reference: Mapping[str, Any]) -> type:
    """Return the class of a law from ``reference_to``.

    Raises:
      UserError: the law is neither one of moejax's nor of an installed package; a missing entry raises ``LookupError``.
    """
    if "loss_law" in reference:
        return chained_law(law_of(reference["loss_law"]), law_of(reference["score_law"]))
    if "formula" in reference:
        return formula_law.from_stored(reference)
    module, name = reference["module"], reference["class"]
    for law in (*LAWS.values(), *CURVE_LAWS.values()):
        if law.__qualname__ == name and _place(law.__module__) == _place(module):
            return law
    raise UserError(
        f"The fitted law is {module}.{name}; only laws of moejax.laws and of installed packages are loaded from a file."
    )


def _place(module: str) -> str:
    """Return a module without the package of moejax's laws, so that files of laws can move between packages."""
    return f"{OWN}{module.rpartition('.')[2]}" if module.startswith(OWN) else module
