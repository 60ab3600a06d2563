"""What a named figure is asked to show."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from moejax.fit.objective import outputs
from moejax.float64 import float64
from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, sentence
from moejax.laws.design import Design, design_from
from moejax.run_table import DataFrame


@dataclass(frozen=True, kw_only=True)
class FigureInputs:
    """A law, a table, or both; a figure says which of them it needs."""

    law: Any = None
    """The law whose curves are drawn."""
    name: str = ""
    """Whose coefficients these are, in words."""
    table: DataFrame = None
    """Runs, or the plain data of a figure that draws no law."""
    active_params: Any = ACTIVE_PARAMS[DEFAULT]
    """The active-parameter convention of figures that know sizes and sparsity alone."""
    synthetic: bool = False
    """Whether the table is an example of ours and no measurement."""

    @property
    def whose(self) -> str:
        """The sentence of a caption that says where the points come from."""
        return " Points are synthetic, to show the form." if self.synthetic else ""

    @property
    def assumes(self) -> str:
        """The sentence of a caption that names the active-parameter convention."""
        return sentence(self.active_params)

    def has(self, *columns: str) -> bool:
        """Whether there is a table with these columns."""
        return self.table is not None and all(column in self.table for column in columns)


def evaluate(law: Any, output: str = "loss", /, **fields: Any) -> np.ndarray:
    """What a law says of designs whose fields are numbers or arrays that broadcast, in float64."""
    shape = np.broadcast_shapes(*(np.shape(value) for value in fields.values()))
    flat = {name: np.ravel(np.broadcast_to(np.asarray(value, np.float64), shape)) for name, value in fields.items()}
    with float64():
        return np.asarray(_outputs(output, law, design_from(flat)), np.float64).reshape(shape)


@functools.partial(jax.jit, static_argnums=0)
def _outputs(output: str, law: Any, design: Design) -> Any:
    return outputs(law, design, output)


def structured(active_experts: Any, shared_share: Any, **sizes: Any) -> dict[str, Any]:
    """Fields of designs with G and S given as numbers, for ``evaluate``."""
    shared = np.asarray(active_experts, float) * shared_share
    return {"top_k": active_experts - shared, "num_shared_experts": shared, **sizes}


def column(table: DataFrame, name: str) -> np.ndarray:
    """A column as numbers."""
    return table[name].to_numpy(dtype=np.float64)


def ordered(values: Any) -> list[float]:
    """The different values, ascending."""
    return sorted({float(value) for value in values})
