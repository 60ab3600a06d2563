"""Draw laws over the ranges to which their constants were fitted, and efficiency leverage over its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing
from numpy.typing import ArrayLike

from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.law import Law
from moejax.laws.mixtures.leverage import optimal_granularity
from moejax.laws.predict import published
from moejax.quantities import format, short
from moejax.report.figures.figure import Figure, FigureInputs, evaluate
from moejax.report.figures.panels import ACTIVE, FLOPS, LOSS, Axis, Field, Panel, Series, draw
from moejax.report.figures.style import INK, ramp
from moejax.result import size

GRANULARITY = Axis("granularity", "granularity, 2·model width / expert width", "log")
EXPERTS = Axis("expert_expansion", "routed experts per active expert", "log")
EPOCHS = Axis("epochs", "epochs, tokens / unique tokens", "log")
MOST_EPOCHS = 100
TOKENS_PER_PARAM = (2, 2000)
PARAMS_PER_SQUARE_WIDTH = 16.0
BUDGETS = (1e17, 1e24)
"""Lowest and highest FLOPs for laws without a fitted range."""
LINES, POINTS = 4, 81

Fields = Mapping[str, ArrayLike]
"""Design fields, for ``evaluate``."""
Lines = Mapping[str, Fields]
"""Fixed fields of each line, keyed by label."""


def kaplan(inputs: FigureInputs) -> Figure:
    """Draw loss against parameters without embeddings, one curve per number of tokens."""
    words = Axis("params_active_nonembedding", "parameters without embeddings", "quantity")
    return _size_and_tokens(inputs, "kaplan", words)


def chinchilla(inputs: FigureInputs) -> Figure:
    """Draw loss against parameters, one curve per number of tokens."""
    return _size_and_tokens(inputs, "chinchilla", ACTIVE)


def loss_compute(inputs: FigureInputs) -> Figure:
    """Draw loss against compute on two logarithmic axes."""
    flops = _spread(BUDGETS, POINTS)
    lines: Lines = {"compute-optimal runs": {}}
    return Figure(
        "Loss against compute",
        f"By {inputs.name}. The paper states no fitted range; a straight line is a pure power law.",
        *_curves(inputs, FLOPS, flops, lines, lambda c: {"flops": c}, y=replace(LOSS, scale="log")),
    )


def over_training(inputs: FigureInputs) -> Figure:
    """Draw the reducible loss against tokens per parameter, a curve per budget."""
    ratios = _spread(TOKENS_PER_PARAM, POINTS)
    budgets = _spread((1e18, 1e24), LINES)
    lines = {f"{short(c, 1)} FLOPs": {"flops": c} for c in budgets}
    series = []
    for (label, one), color in zip(lines.items(), ramp(len(lines)), strict=True):
        params = np.sqrt(one["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * ratios))
        losses = evaluate(inputs.law, params_active=params, tokens=ratios * params)
        series.append(Series(label=label, x=ratios, y=losses - float(inputs.law.irreducible), color=color))
    panel = Panel(
        x=Axis("tokens_per_param", "tokens per parameter", "log"),
        y=Axis("reducible_loss", "loss above the irreducible, nats/token", "log"),
        series=series,
    )
    return Figure(
        "Loss against tokens per parameter, by budget",
        f"By {inputs.name}. All curves have the same shape: over-training raises the reducible loss by the same "
        "factor at every budget.",
        *draw([panel], columns=1, height=3.0),
    )


def width_depth(inputs: FigureInputs) -> Figure:
    """Draw loss against width at a constant number of parameters, one curve per size."""
    fitted = published("width_depth").fitted
    tokens = _middle(fitted["tokens"])
    series = []
    sizes = _spread(fitted["params_active"], LINES)
    for params, color in zip(sizes, ramp(len(sizes)), strict=True):
        # Layers have 16·w² parameters, like the released models except the narrow ones; embeddings are left out.
        bounds = [np.sqrt(params / (PARAMS_PER_SQUARE_WIDTH * depth)) for depth in reversed(fitted["num_layers"])]
        widths = _spread((bounds[0], bounds[1]), POINTS)
        depths = params / (PARAMS_PER_SQUARE_WIDTH * widths**2)
        losses = evaluate(inputs.law, model_dim=widths, num_layers=depths, params_active=params, tokens=tokens)
        series.append(Series(label=f"p = {size(params, 2)}", x=widths, y=losses, color=color))
    return Figure(
        "Loss against width, by size",
        f"By {inputs.name}, at {format(tokens, 2)} tokens, for 3 to 80 layers of 16 w² parameters each: models on "
        "the left are deep and narrow, models on the right shallow and wide.",
        *draw([Panel(x=Axis("model_dim", "width", "log"), y=LOSS, series=series)], columns=1, height=3.0),
    )


def error_from_loss(inputs: FigureInputs) -> Figure:
    """Draw the error of tasks against the loss."""
    return Figure(
        "Error of tasks against loss",
        f"By {inputs.name}, over the fitted range of losses: 17 tasks, models trained on C4.",
        *_scores(inputs, "error_from_loss", "error", "error, share of answers"),
    )


def accuracy_from_loss(inputs: FigureInputs) -> Figure:
    """Draw the accuracy of a task against its loss, extended beyond both ends of the fitted range."""
    return Figure(
        "Accuracy of a task against its loss",
        f"By {inputs.name}: HellaSwag; losses are bits per byte of the correct answers, extended by a factor of 1.4 "
        "below the fitted range, to the losses of large models.",
        *_scores(inputs, "accuracy_from_loss", "accuracy", "accuracy, share of answers", beyond=1.4),
    )


def _scores(inputs: FigureInputs, law: str, output: str, words: str, beyond: float = 1.0) -> tuple[Any, Any]:
    low, high = published(law).fitted["loss"]
    losses = np.linspace(low / beyond, high, POINTS)
    score = Series(label=output, x=losses, y=evaluate(inputs.law, output, loss=losses))
    panel = Panel(x=Axis("loss", "loss"), y=Axis(output, words), series=[score])
    return draw([panel], columns=1, height=3.0)


def data_constrained(inputs: FigureInputs) -> Figure:
    """Draw loss against epochs, one curve per number of unique tokens."""
    fitted, epochs = published("data_constrained").fitted, _spread((1, MOST_EPOCHS), POINTS)
    params = _middle(fitted["params_active"])
    lines = {
        f"{size(unique, 2)} unique tokens": {"unique_tokens": unique, "tokens": unique * epochs}
        for unique in _spread(fitted["unique_tokens"], LINES)
    }
    return Figure(
        "Loss against epochs, by unique tokens",
        f"By {inputs.name}, over the fitted range of unique tokens, with {format(params, 2)} parameters. Each "
        "further epoch reduces the loss less.",
        *_curves(inputs, EPOCHS, epochs, lines, lambda _: {"params_active": params}),
    )


def granularity(inputs: FigureInputs) -> Figure:
    """Draw loss against granularity, one curve per size."""
    fitted = published("granularity").fitted
    tokens = _middle(fitted["tokens"])
    figure = _curves(
        inputs,
        GRANULARITY,
        _spread(fitted["granularity"], POINTS),
        {f"N = {size(n, 2)}": {"params_total": n} for n in _spread(fitted["params_total_nonembedding"], LINES)},
        lambda g: {"model_dim": g, "expert_hidden": 2.0, "tokens": tokens},
    )
    return Figure(
        "Loss against granularity, by total size",
        f"By {inputs.name}, over the fitted ranges, at {format(tokens, 2)} tokens. Finer experts lower the loss at "
        "every size, with diminishing returns; the law does not include the cost of routing, which limits useful "
        "granularity.",
        *figure,
    )


def expert_count(inputs: FigureInputs) -> Figure:
    """Draw loss against the number of experts, one curve per active size."""
    tokens = _middle(published("expert_count").fitted["tokens"])
    figure = _by_experts(inputs, "expert_count", tokens=tokens)
    return Figure(
        "Loss against the number of experts, by active size",
        f"By {inputs.name}, over the fitted ranges, at {format(tokens, 2)} tokens and equal active size; 1 is a dense "
        "model.",
        *figure,
    )


def routed(inputs: FigureInputs) -> Figure:
    """Draw loss against the number of experts, one curve per dense size."""
    return Figure(
        "Loss against the number of experts, by the size of the dense base model",
        f"By {inputs.name}, over the fitted ranges, after 130B tokens. Experts help small models more than large ones.",
        *_by_experts(inputs, "routed"),
    )


def _size_and_tokens(inputs: FigureInputs, law: str, params: Axis) -> Figure:
    fitted = published(law).fitted
    figure = _curves(
        inputs,
        params,
        _spread(fitted[params.column], POINTS),
        {f"D = {size(d, 2)}": {"tokens": d} for d in _spread(fitted["tokens"], LINES)},
        lambda n: {"params_active": n},
    )
    return Figure(
        "Loss against parameters, by tokens",
        f"By {inputs.name}, over the fitted ranges of parameters and tokens. With few tokens, all sizes have a high "
        "loss.",
        *figure,
    )


def _by_experts(inputs: FigureInputs, law: str, **held: float) -> tuple[Drawing, list[dict[str, Any]]]:
    fitted = published(law).fitted
    return _curves(
        inputs,
        EXPERTS,
        _spread(fitted["expert_expansion"], POINTS),
        {f"N = {size(n, 2)}": {"params_active": n} for n in _spread(fitted["params_active"], LINES)},
        lambda e: {"num_experts": e, "top_k": 1.0, **held},
    )


def _curves(
    inputs: FigureInputs, x: Axis, xs: np.ndarray, lines: Lines, fields: Callable[[np.ndarray], Fields], y: Axis = LOSS
) -> Any:
    series = [
        Series(label=label, x=xs, y=evaluate(inputs.law, **fields(xs), **one), color=color)
        for (label, one), color in zip(lines.items(), ramp(len(lines)), strict=True)
    ]
    return draw([Panel(x=x, y=y, series=series)], columns=1, height=3.0)


def _spread(bounds: tuple[Any, Any], count: int) -> np.ndarray:
    return np.geomspace(float(bounds[0]), float(bounds[1]), count)


def _middle(bounds: tuple[Any, Any]) -> float:
    return float(np.sqrt(bounds[0] * bounds[1]))


RATIO = Axis("activation_ratio", "activation ratio A", "percent")
GRANULARITY_OF_LEVERAGE = Axis("granularity", "granularity G", "log")
LEVERAGE = Axis("efficiency_leverage", "efficiency leverage EL", "log")


def leverage(law: Law, ratio: ArrayLike, granularity: ArrayLike, flops: ArrayLike) -> np.ndarray:
    """Return the efficiency leverage of MoE models by activation ratio and granularity."""
    return evaluate(
        law,
        "efficiency_leverage",
        num_experts=1.0,
        top_k=ratio,
        num_shared_experts=0.0,
        model_dim=granularity,
        expert_hidden=2.0,
        flops=flops,
    )


def field(law: Any, flops: float, marks: Sequence[Series]) -> Field:
    """Draw the efficiency leverage at a budget against granularity and activation ratio, with a line at the best
    granularity.
    """
    ratio, granularity = np.geomspace(0.0078, 1.0, 61), np.geomspace(2.0, 32.0, 41)
    best = float(np.asarray(optimal_granularity(law, 0.031, flops).value["granularity"]))
    line = Series(label="best granularity", x=[best, best], y=[ratio[0], ratio[-1]], mark="dashed", color=INK)
    return Field(
        x=GRANULARITY_OF_LEVERAGE,
        y=RATIO,
        z=Axis("efficiency_leverage", "efficiency leverage"),
        xs=granularity,
        ys=ratio,
        zs=leverage(law, ratio[:, None], granularity[None, :], flops),
        marks=[line, *marks],
        high_is_good=True,
        contours=(1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    )
