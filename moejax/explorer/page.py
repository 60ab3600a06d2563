"""Write the explorer: one HTML file with laws as JavaScript, their constants, sliders and charts."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import jax
import numpy as np
import scipy.special

from moejax.errors import UserError
from moejax.explorer.available import Available, AvailableLaw
from moejax.explorer.javascript import javascript
from moejax.explorer.knobs import KNOBS, PRESETS, START, STRUCTURE, VALUES, design_of, of_architecture, preset
from moejax.fit.fit_result import FitResult
from moejax.json_text import finite
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import FIELDS, Design, value_of
from moejax.laws.law import Law, coefficients
from moejax.laws.predict import AS_DENSE, predict
from moejax.run_table import DataFrame
from moejax.say import say

WITHIN = 0.001
"""Maximum increase of the loss within a practical range, in nats."""
LEVEL = 0.9
"""Coverage of prediction intervals for new runs."""
DEGREES_OF_FREEDOM = np.geomspace(1.0, 1e6, 400)
"""Degrees of freedom at which Student's t is tabulated for the page, which interpolates between them."""

Values = tuple[Any, ...]


def page(available: Available) -> str:
    """Return the page as self-contained HTML.

    Raises:
      UserError: no given fit can be shown, because the sliders do not provide its inputs.
    """
    laws = {key: law for key, law in available.laws.items() if _is_asked(law)}
    if left_out := [law for key, law in available.laws.items() if key not in laws and law.fit is not None]:
        names = ", ".join(f"{law.file} (it reads {', '.join(law.law.inputs)})" for law in left_out)
        if not any(law.fit is not None for law in laws.values()):
            raise UserError(f"The sliders do not provide all inputs of the fit: {names}. Use moejax predict instead.")
        say(f"Left out, because the sliders do not provide all inputs: {names}.")
    data = {
        "values": VALUES,
        "structure": STRUCTURE,
        "knobs": [knob.to_json() for knob in KNOBS],
        "presets": {name: _array(preset(name)) for name in PRESETS},
        "models": {name: _array({**START, **of_architecture(model.architecture)}) for name, model in CATALOGUE.items()},
        "laws": {key: _law_data(key, law) for key, law in laws.items()},
        "start": {"law": opens_on(available), "values": _array(available.start)},
        "runs": _run_data(available.runs),
        "within": WITHIN,
        "level": LEVEL,
        "as_dense": AS_DENSE,
        "students_t": [
            DEGREES_OF_FREEDOM.tolist(),
            scipy.special.stdtrit(DEGREES_OF_FREEDOM, (1 + LEVEL) / 2).tolist(),
        ],
    }
    names = sorted({name for law in laws.values() for name in law.known.fitted})
    folder = files("moejax.explorer")
    parts = {
        "STYLE": (folder / "explorer.css").read_text(encoding="utf-8"),
        "LICENSES": "\n".join(
            (folder / "vendor" / f"{name}.LICENSE").read_text(encoding="utf-8") for name in ("d3", "plot")
        ),
        "LIBRARIES": "\n".join(
            (folder / "vendor" / f"{name}.min.js").read_text(encoding="utf-8") for name in ("d3", "plot")
        ),
        "DATA": _json(finite(data)),
        "PROGRAMS": _programs(laws, names),
        "PAGE": (folder / "explorer.js").read_text(encoding="utf-8"),
    }
    text = (folder / "explorer.html").read_text(encoding="utf-8")
    return re.sub("@([A-Z]+)@", lambda place: parts[place[1]], text)


def opens_on(available: Available) -> str:
    """Return the key of the law that the page shows first: the requested law, the user's first fit, or chapter 002's
    law.

    Raises:
      UserError: the requested law, or every law, predicts no loss from the sliders' values.
    """
    losses = [key for key, law in available.laws.items() if _is_asked(law) and "loss" in law.law.outputs]
    if not losses:
        raise UserError("No available law predicts a loss from the sliders' values; give another fit, or none.")
    if available.law and available.law not in losses:
        raise UserError(f"{available.law} predicts no loss from the sliders' values; give another --law.")
    return available.law or (losses[0] if available.own else "effective_params:chapter-002")


def _json(plain: Any) -> str:
    """Return JSON that is safe inside a script element, even with names that contain HTML."""
    return json.dumps(plain, ensure_ascii=True).replace("<", "\\u003c")


def _array(values: Mapping[str, float]) -> list[float | None]:
    """Return the entries of ``VALUES`` in order; infinity becomes None, because JSON has no infinity."""
    return [values[name] if np.isfinite(values[name]) else None for name in VALUES]


def _is_asked(law: AvailableLaw) -> bool:
    """Return whether the sliders provide all inputs of a law."""
    point = design_of(START)
    return all(getattr(point, name, None) is not None for name in law.law.inputs)


def _of_values(function: Callable[[Design], Any]) -> Callable[[Values], Any]:
    return lambda values: function(design_of(dict(zip(VALUES, values, strict=True))))


def _example() -> Values:
    return tuple(START[name] for name in VALUES)


def _answers(law: Law, values: Values) -> list[Any]:
    """Return a law's outputs in the order of ``outputs``."""
    answer = _of_values(law)(values)
    return [answer[name] for name in law.outputs] if isinstance(answer, Mapping) else [answer]


def _programs(laws: Mapping[str, AvailableLaw], names: list[str]) -> str:
    """Return the JavaScript of ``PROGRAMS``, ``designOf`` and ``variablesOf``, the functions that the page evaluates.

    There is one program per law class; it takes coefficients and values. ``jax.grad`` gives the derivatives:
    ``slopes`` of the loss with respect to the values of ``STRUCTURE``, and ``pulls`` of the log of a fit's prediction
    with respect to the fit's coefficients.
    """
    programs = {}
    for law in laws.values():
        name = _program(law)
        if name in programs:
            continue
        example = law.law
        own = {"answers": javascript(_answers, example, _example())}
        if "loss" in example.outputs:

            def slopes(given: Law, values: Values) -> list[Any]:
                return list(jax.grad(lambda v: _answers(given, v)[0])(values)[: len(STRUCTURE)])

            own["slopes"] = javascript(slopes, example, _example())
        if hasattr(example, "dense_equivalent"):
            own["effective"] = javascript(lambda given, v: [_of_values(given.dense_equivalent)(v)], example, _example())
        if law.fit is not None:

            def pulls(given: Law, values: Values) -> Any:
                return jax.grad(lambda one: jax.numpy.log(_answers(one, values)[0]))(given)

            own["pulls"] = javascript(pulls, example, _example())
        programs[name] = "{" + ", ".join(f"{key}: {text}" for key, text in own.items()) + "}"
    fields = [name for name in FIELDS if getattr(design_of(START), name) is not None]
    known = [name for name in names if value_of(design_of(START), name) is not None]
    design = javascript(lambda v: [getattr(_of_values(lambda d: d)(v), name) for name in fields], _example())
    variables = javascript(lambda v: [value_of(_of_values(lambda d: d)(v), name) for name in known], _example())
    return "\n".join(
        [
            "const PROGRAMS = {" + ",\n".join(f"{_json(k)}: {text}" for k, text in programs.items()) + "};",
            f"const FIELDS = {json.dumps(fields)}, VARIABLES = {json.dumps(known)};",
            f"const designOf = {design}, variablesOf = {variables};",
        ]
    )


def _program(law: AvailableLaw) -> str:
    """Return the program name of a law's class; a user's fit has its own program, because its law may be a formula."""
    return f"{type(law.law).__name__} {law.file}".strip()


def _law_data(key: str, law: AvailableLaw) -> dict[str, Any]:
    name, _, constants = key.partition(":")
    point = Design(
        **{field: float(value) for field in FIELDS if (value := getattr(design_of(START), field)) is not None}
    )
    prediction = predict(law.known, point)
    own = law.fit is not None
    return {
        "label": f"your fit: {constants}" if own else f"{name}, {constants}",
        "program": _program(law),
        "coefficients": [float(leaf) for leaf in jax.tree.leaves(law.law)],
        "constants": _constants(law.law),
        "outputs": dict(law.law.outputs),
        "inputs": list(law.law.inputs),
        "fitted": {one: [float(low), float(high)] for one, (low, high) in law.known.fitted.items()},
        "unchecked": list(prediction.unchecked),
        "source": f"your fit {law.file}" if isinstance(law.known, FitResult) else law.known.source,
        "command": f"--law {law.file}" if own else f"--law {name} --constants {constants}",
        "dense": not isinstance(law.known, FitResult) and law.known.dense,
        "notes": list(law.known.warnings) + list(law.known.dropped)
        if isinstance(law.known, FitResult)
        else [law.known.remark] * bool(law.known.remark),
        "uncertainty": None if law.fit is None else _uncertainty(law.fit),
    }


def _constants(law: Any) -> list[list[Any]]:
    """Return the symbol, name, value and meaning of every coefficient."""
    about = {field.name: field.metadata for field in dataclasses.fields(law)}
    return [[about[k]["symbol"], k, float(value), about[k]["meaning"]] for k, value in coefficients(law).items()]


def _uncertainty(fit: FitResult) -> dict[str, Any]:
    """Return a fit's covariance for prediction intervals, or the reason why there are none."""
    stored = fit.uncertainty
    if stored is None or not stored.axes:
        return {"why_none": fit.why_no_covariance}
    if fit.few:
        return {"why_none": f"There are no prediction intervals: {fit.few}."}
    if not fit.converged or fit.undetermined or fit.alternatives:
        return {
            "why_none": "Some predictions of this fit are not determined; `moejax predict` shows which ones have an "
            "interval."
        }
    values = coefficients(fit.law)
    order = [name for name in values if name in {one for axis in stored.axes for one in axis}]
    return {
        "coefficients": [list(values).index(name) for name in order],
        "axes": [[float(axis.get(name, 0.0)) * float(values[name]) for name in order] for axis in stored.axes],
        "deviations": list(stored.deviations),
        "leverages": [np.reshape(rows, (-1, len(stored.axes))).tolist() for rows in stored.leverages],
        "scatter": float(fit.noise),
        "degrees_of_freedom": float(stored.degrees_of_freedom),
    }


def _run_data(table: DataFrame | None) -> list[dict[str, float]]:
    if table is None:
        return []
    kept = [name for name in ("flops", "params_active", "loss") if name in table]
    return table[kept].dropna().astype(float).to_dict("records")
