"""Compile JAX functions of numbers to JavaScript, so that the page and Python compute the same results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from moejax.errors import UserError
from moejax.float64 import float64

NO_JAVASCRIPT = "The page cannot compute {}; evaluate the law with moejax predict instead."

INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "and": "&&", "or": "||"}
COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "===", "ne": "!=="}
CALLS = {name: f"Math.{name}" for name in ("pow", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "abs", "sign")}
EXTREMES = {"max": "Math.max", "min": "Math.min"}
UNARY = {"neg": "-", "not": "!", "is_finite": "Number.isFinite"}
SAME = ("convert_element_type", "copy", "stop_gradient", "squeeze", "broadcast_in_dim", "reshape")
"""Primitives that leave a scalar unchanged."""


def javascript(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the source of a JavaScript function that takes one array per argument and returns an array of numbers.

    Args:
      function: a JAX function of pytrees of numbers that returns a pytree of numbers.
      arguments: example arguments; an array's entries are the argument's leaves in the order of ``jax.tree.leaves``.

    Raises:
      UserError: the function uses arrays or an unsupported primitive.
    """
    with float64():
        exact = jax.tree.map(np.float64, arguments)
        program = jax.make_jaxpr(lambda *given: jax.tree.leaves(function(*given)))(*exact)
    writer = _Writer()
    names = [f"{letter}[{i}]" for letter, one in zip("abc", arguments, strict=False)
             for i in range(len(jax.tree.leaves(one)))]  # fmt: skip
    results = writer.write(program.jaxpr, program.consts, names)
    used, body = set(results), []
    for name, expression, operands in reversed(writer.lines):
        if name in used:
            used |= set(operands)
            body.append(f"const {name} = {expression};")
    head = ", ".join("abc"[: len(arguments)])
    return f"({head}) => {{ {' '.join(reversed(body))} return [{', '.join(results)}]; }}"


class _Writer:
    """A converter from a jaxpr to one assignment per equation, with called jaxprs inlined."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, list[str]]] = []

    def write(self, program: Jaxpr, constants: Sequence[Any], inputs: list[str]) -> list[str]:
        """Append the jaxpr's assignments and return the expressions of its outputs."""
        at = dict(zip(program.invars, inputs, strict=True))
        at |= {variable: number(value) for variable, value in zip(program.constvars, constants, strict=True)}

        def read(atom: Var | Literal) -> str:
            return number(atom.val) if isinstance(atom, Literal) else at[atom]

        for equation in program.eqns:
            operands = [read(atom) for atom in equation.invars]
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if inner is not None:
                results = self.write(inner.jaxpr, inner.consts, operands)
            else:
                results = [self._assigned(equation, operands)]
            at |= dict(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in program.outvars]

    def _assigned(self, equation: Any, operands: list[str]) -> str:
        (output,) = equation.outvars
        if output.aval.shape:
            raise UserError(NO_JAVASCRIPT.format(f"{equation.primitive.name} of an array"))
        name = f"v{len(self.lines)}"
        self.lines.append((name, _expression(equation, operands), operands))
        return name


def _expression(equation: JaxprEqn, operands: list[str]) -> str:
    name = equation.primitive.name
    if sign := (INFIX | COMPARISONS).get(name):
        return f" {sign} ".join(operands)
    if call := (CALLS | EXTREMES | UNARY).get(name):
        return f"{call}({', '.join(operands)})"
    if name in SAME:
        return operands[0]
    match name:
        case "integer_pow":
            return f"Math.pow({operands[0]}, {equation.params['y']})"
        case "logistic":
            return f"1 / (1 + Math.exp(-{operands[0]}))"
        case "exp2":
            return f"Math.pow(2, {operands[0]})"
        case "square":
            return f"{operands[0]} * {operands[0]}"
        case "rsqrt":
            return f"1 / Math.sqrt({operands[0]})"
        case "select_n":
            return f"{operands[0]} ? {operands[2]} : {operands[1]}"
    raise UserError(NO_JAVASCRIPT.format(name))


def number(value: Any) -> str:
    """Return a number or boolean as a JavaScript literal with full precision."""
    if np.ndim(value):
        raise UserError(NO_JAVASCRIPT.format("a constant array"))
    if np.asarray(value).dtype == bool:
        return "true" if value else "false"
    exact = float(value)
    if math.isfinite(exact):
        return f"({exact!r})" if exact < 0 else repr(exact)
    return "NaN" if math.isnan(exact) else "Infinity" if exact > 0 else "(-Infinity)"
