"""Draw predictions against measurements for a study's laws, compared laws, and tables that commands write.

Zhao et al. (2025), Figure 5; Abnar et al. (2025), Figure 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from moejax.fit.runs import Runs
from moejax.fit.selection.comparison import Comparison
from moejax.fit.selection.metrics import predict
from moejax.fit.selection.model_selection import Compared
from moejax.interval import in_percent
from moejax.laws.design import FIELDS
from moejax.laws.law import LOSS, with_unit
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.groups import MEANING, groups_of
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, TOKENS, TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import BLUE, MUTED, ORANGE, PAPER, grid
from moejax.report.findings import Findings, is_mixture
from moejax.run_table import DataFrame

ROLES = (("fitted", BLUE, "points"), ("held out", ORANGE, "stars"))


def by_law(inputs: FigureInputs) -> Figure:
    """Draw Zhao's Figure 5: a panel per law; stars are held-out runs, and areas are proportional to tokens."""
    laws = list(dict.fromkeys(inputs.table["law"]))
    panels = [_equality(inputs.table[inputs.table["law"] == law], str(law), ("fitted", "held out")) for law in laws]
    return figure(
        "Predicted against measured, by law",
        f"Points on the line are predicted exactly; {_roles(inputs.table)}."
        + (" Areas ∝ tokens." if inputs.has("tokens") else "")
        + inputs.whose,
        panels,
        columns=3,
        height=2.8,
    )


def _roles(table: DataFrame) -> str:
    """Describe the marks. In a table of ``moejax compare``, held-out runs also have a prediction by the fit to all
    runs."""
    if not (table["role"] == "held out").any():
        return "all runs were fitted"
    if "row" in table and table.groupby(["law", "row"])["role"].nunique().max() > 1:
        return (
            "dots are runs, predicted by the fit to all runs, and stars are the held-out runs among them, predicted "
            "again by a fit without them"
        )
    return "stars are held-out runs"


def fitted_here(inputs: FigureInputs) -> Figure:
    """Draw ``by_law`` for laws without published constants."""
    figure = by_law(inputs)
    roles = inputs.table[inputs.table["law"] == inputs.table["law"].iloc[0]]["role"]
    fitted, held_out = (int((roles == role).sum()) for role, *_ in ROLES)
    again = f" Stars are {held_out} of them, predicted by fits without them." if held_out else ""
    return replace(
        figure,
        title="Laws without published constants, fitted here",
        caption=f"No constants are published; the laws are fitted to {fitted} runs.{again} Points on the line are "
        f"predicted exactly.{inputs.whose}",
    )


def fitted_and_held_out(inputs: FigureInputs) -> Figure:
    """Draw Abnar's Figure 6: fitted and held-out runs side by side, for the first law of the table."""
    law = inputs.table["law"].iloc[0]
    own = inputs.table[inputs.table["law"] == law]
    panels = [_equality(own, f"{law}: {role}", (role,)) for role, *_ in ROLES]
    return figure(
        "Fitted and held out",
        "Left: runs to which the coefficients were fitted. Right: held-out runs. Points on the line are predicted "
        "exactly." + inputs.whose,
        panels,
        columns=2,
        height=3.3,
    )


MOST = 30
"""Maximum number of held-out runs that are drawn."""


def held_out_runs(inputs: FigureInputs) -> Figure:
    """Draw the prediction, prediction interval and measurement of each held-out run."""
    table = inputs.table.copy()
    table["away"] = np.abs(column(table, "half_ranges"))
    shown = table.sort_values("away", ascending=False, na_position="last").head(MOST)[::-1]
    measured, predicted, low, high = (column(shown, name) for name in ("measured", "predicted", "low", "high"))
    several = shown["split"].nunique() > 1
    names = [
        f"{run} ({split})" if several else str(run) for run, split in zip(shown["run"], shown["split"], strict=True)
    ]
    lines, inside = np.arange(len(shown)), column(shown, "half_ranges")
    drawing, (axes,) = grid(1, 1, height_inches=1.1 + 0.2 * len(names))
    axes.hlines(lines, low, high, color=BLUE, linewidth=4, alpha=0.35, label="interval")
    axes.plot(predicted, lines, "|", color=BLUE, markersize=9, label="predicted")
    for label, kept, marker, color in (
        ("measured, inside", np.abs(inside) <= 1, "o", BLUE),
        ("measured, outside", np.abs(inside) > 1, "^", ORANGE),
        ("measured, no interval", ~np.isfinite(inside), "D", MUTED),
    ):
        if kept.any():
            axes.plot(measured[kept], lines[kept], marker, color=color, markeredgecolor=PAPER, label=label)
    axes.set_yticks(lines, names)
    axes.set_xlabel(with_unit(str(table["output"].iloc[0])))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    within, ranged, level = (table["away"] <= 1).sum(), np.isfinite(table["away"]).sum(), table["level"].iloc[0]
    share = f"{within} of {ranged} runs lie in their {in_percent(level)} prediction intervals"
    some = f" The {len(shown)} farthest of {len(table)} are drawn." if len(shown) < len(table) else ""
    columns = ["split", "run", "measured", "predicted", "low", "high", "half_ranges"]
    return Figure(
        "Runs that were not fitted",
        f"{share}. Each run is predicted by a fit without it; the farthest from their predictions are "
        f"first.{some}{inputs.whose}",
        drawing,
        shown[::-1][columns].to_dict("records"),
    )


def _equality(table, title: str, roles: tuple[str, ...]) -> Panel:
    output = str(table["output"].iloc[0])
    loss = output in LOSS
    series, errors = [], []
    for role, color, mark in ROLES:
        own = table[table["role"] == role]
        if role not in roles or not len(own):
            continue
        measured, predicted = column(own, "measured"), column(own, "predicted")
        tokens = column(own, "tokens") if "tokens" in own else None
        series.append(Series(label=role, x=measured, y=predicted, mark=mark, color=color, tokens=tokens))
        errors.append(f"{role} {abs(predicted - measured).mean():{'.4f' if loss else '.4g'}}")
    axes = [Axis(name, f"{name} {with_unit(output)}") for name in ("measured", "predicted")]
    note = "\n".join(["MAE, nats" if loss else "MAE", *errors])
    return Panel(x=axes[0], y=axes[1], series=series, title=title, diagonal=True, corner=note)


KNOWN = {axis.column: axis for axis in (ACTIVE, TOTAL, TOKENS, FLOPS, EXPANSION)}
WIDE = 5.0
"""Minimum ratio of the largest to the smallest value for a logarithmic axis."""


def through_runs(inputs: FigureInputs) -> Figure:
    """Draw predictions against measurements, and residuals against each input of the law, FLOPs and expansion."""
    table = inputs.table
    measured, predicted = column(table, "measured"), column(table, "predicted")
    words = with_unit(str(table["output"].iloc[0]))
    residual = measured - predicted
    error = float(np.sqrt(np.mean(residual**2)))
    over = [name for name in (*FIELDS, "expansion") if name in table and _varies(column(table, name))]
    groups = groups_of(column(table, "expansion")) if "expansion" in over else []
    points = [(one.label, one.color, one.rows) for one in groups] or [("runs", BLUE, np.arange(len(table)))]
    panels = [
        Panel(
            x=Axis("measured", f"measured {words}"),
            y=Axis("predicted", f"predicted {words}"),
            series=_points_of(points, measured, predicted),
            title="Predicted and measured",
            diagonal=True,
            corner=f"RMSE {error:.4g}",
        )
    ]
    unit = words.partition(", ")[2]
    for name in over:
        x = column(table, name)
        y = Axis("residual", f"measured − predicted{f', {unit}' if unit else ''}")
        panels.append(
            Panel(
                x=_axis(name, x), y=y, series=_points_of(points, x, residual), title=f"Over {_words(name)}", level=0.0
            )
        )
    return figure(
        f"{table['law'].iloc[0]} through its runs",
        f"{len(table)} runs. First panel: points on the line are predicted exactly. Other panels: residuals with a "
        "trend over an input, or of one sign in a group, show that the law's form does not describe its effect."
        f"{f' {MEANING}' * bool(groups)}{inputs.whose}",
        panels,
        columns=2,
        height=2.8,
    )


def _varies(values: np.ndarray) -> bool:
    return bool(np.ptp(values) > 1e-9 * np.abs(values).max())


def _points_of(points: Sequence[tuple[str, str, np.ndarray]], x: np.ndarray, y: np.ndarray) -> list[Series]:
    return [Series(label=label, x=x[rows], y=y[rows], mark="points", color=color) for label, color, rows in points]


def _axis(name: str, values: np.ndarray) -> Axis:
    if name in KNOWN:
        return KNOWN[name]
    wide = values.min() > 0 and values.max() / values.min() > WIDE
    return Axis(name, _words(name), "log" if wide else "linear")


def _words(name: str) -> str:
    return KNOWN[name].words.partition(",")[0] if name in KNOWN else name.replace("_", " ")


MANY = 1500
"""Number of runs above which points are rasterized, which limits the page size."""
KINDS = ((1, "mixture of experts", BLUE, "o"), (0, "dense", ORANGE, "s"), (-1, "run, dense or mixture", MUTED, "o"))


def predicted_vs_actual(findings: Findings) -> Figure | None:
    """Draw predictions against measurements, a panel per law. Return None if no law was fitted."""
    laws = findings.concluded.analysed.laws
    if not laws:
        return None
    many = max(len(law.rows) for law in laws) > MANY
    drawing, panels = grid(len(laws), 2, height_inches=3.5, sharex=True, sharey=True)
    rows = []
    for law, axes in zip(laws, panels, strict=True):
        runs = findings.runs.iloc[law.rows]
        measured = runs["loss"].to_numpy()
        mixture = is_mixture(runs)
        kinds = np.full(len(runs), -1) if mixture is None else mixture.astype(int)
        predicted, low, high = map(np.asarray, (law.predicted, law.predicted_low, law.predicted_high))
        axes.axline((measured[0], measured[0]), slope=1, color=MUTED, linewidth=0.9, zorder=1)
        for kind, label, color, marker in KINDS:
            own = kinds == kind
            axes.vlines(measured[own], low[own], high[own], color=color, linewidth=3, alpha=0.35, rasterized=many)
            axes.plot(
                measured[own],
                predicted[own],
                marker,
                color=color,
                markeredgecolor=PAPER,
                markeredgewidth=0.6,
                label=label if own.any() else None,
                rasterized=many,
            )
        axes.set_title(f"{law.name}: R² {law.fit.metrics.r_squared:.3f}, MAE {law.fit.metrics.mae:.4f}")
        axes.set_xlabel("measured loss, nats/token")
        axes.set_aspect("equal", adjustable="box")
        for number, (_, run) in enumerate(runs.iterrows()):
            rows.append(
                {
                    "law": law.name,
                    "model": run["model"],
                    "tokens": run.get("tokens"),
                    "output": law.fit.output,
                    "measured": measured[number],
                    "predicted": predicted[number],
                    "predicted_low": low[number],
                    "predicted_high": high[number],
                }
            )
    every = np.array([row[name] for row in rows for name in ("measured", "predicted")])
    for axes in panels[-2:]:
        axes.tick_params(labelbottom=True)
    panels[0].xaxis.set_major_locator(MaxNLocator(6))
    panels[0].yaxis.set_major_locator(MaxNLocator(6))
    panels[0].set(xlim=around(every), ylim=around(every))
    panels[0].set_ylabel("predicted loss, nats/token")
    panels[0].legend(loc="upper left")
    return Figure(
        "Predicted against measured",
        "All runs shown were fitted. Points on the line are predicted exactly; bars contain 90 % of the bootstrap "
        "resamples. If all points of a class (dense or MoE) lie on one side of the line, the law cannot describe this "
        "class.",
        drawing,
        rows,
    )


def around(values: np.ndarray) -> tuple[float, float]:
    """Return axis limits that include all values and a margin."""
    margin = 0.06 * np.ptp(values) or 0.1
    return float(values.min() - margin), float(values.max() + margin)


FITTED, HELD_OUT = "fitted", "held out"
LOOKS = {
    FITTED: {"color": BLUE, "marker": "o", "markersize": 4},
    HELD_OUT: {"color": ORANGE, "marker": "s", "markersize": 4.5},
}
"""Marks of runs by role."""


def compared_laws(comparison: Comparison, runs: Runs, rows: Sequence[int]) -> Figure:
    """Draw predictions against measurements, a panel per law in order of held-out error.

    Args:
      rows: row numbers of the runs in their file.
    """
    columns = 3 if len(comparison.laws) > 4 else 2
    drawing, panels = grid(len(comparison.laws), columns, height_inches=2.9, sharex=True, sharey=True)
    limits = around(runs.loss[runs.weight > 0])
    data = []
    for law, axes in zip(comparison.laws, panels, strict=True):
        own = [*_fitted(law, runs, rows), *_held_out(comparison, law, runs, rows)]
        _panel(axes, own, limits)
        axes.set_title(law.name)
        errors = f"RMSE {law.fit.metrics.rmse_of(law.fit.output):.4f}\nheld out {law.rmse:.4f}"
        axes.text(0.97, 0.04, errors, transform=axes.transAxes, ha="right", va="bottom", fontsize=7.5, color=MUTED)
        data += own
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    panels[0].xaxis.set_major_locator(MaxNLocator(4))
    panels[0].yaxis.set_major_locator(MaxNLocator(4))
    panels[0].set(xlim=limits, ylim=limits)
    panels[0].legend(loc="upper left")
    words = with_unit(runs.output)
    drawing.supxlabel(f"measured {words}", fontsize=8.5)
    drawing.supylabel(f"predicted {words}", fontsize=8.5)
    return Figure(
        "Predicted against measured",
        f"Points on the line are predicted exactly. RMSE in {comparison.unit}. Circles are all runs, predicted by the "
        "fit to all of them; squares are the held-out runs among them, predicted again by a fit without them. "
        "Triangles lie beyond the axis limits.",
        drawing,
        data,
    )


def _fitted(law: Compared, runs: Runs, rows: Sequence[int]) -> list[dict[str, Any]]:
    kept = runs.weight > 0
    return _points(law.name, FITTED, "all runs fitted", predict(law.fit.law, runs, law.fit.output), kept, runs, rows)


def _held_out(comparison: Comparison, law: Compared, runs: Runs, rows: Sequence[int]) -> list[dict[str, Any]]:
    points = []
    for split, held_out in zip(comparison.splits, law.held_out, strict=True):
        predicted = predict(held_out.fit.law, runs, held_out.fit.output)
        kept = split.held_out & (runs.weight > 0)
        points += _points(law.name, HELD_OUT, split.name, predicted, kept, runs, rows)
    return points


def _points(
    law: str, role: str, split: str, predicted: np.ndarray, kept: np.ndarray, runs: Runs, rows: Sequence[int]
) -> list[dict[str, Any]]:
    return [
        {
            "law": law,
            "role": role,
            "split": split,
            "row": rows[i],
            "output": runs.output,
            "measured": float(runs.loss[i]),
            "predicted": float(predicted[i]),
        }
        for i in np.flatnonzero(kept).tolist()
    ]


def _panel(axes: Axes, points: Sequence[dict[str, Any]], limits: tuple[float, float]) -> None:
    low, high = limits
    axes.axline((low, low), slope=1, color=MUTED, linewidth=0.9, zorder=1)
    for role, look in LOOKS.items():
        own = [point for point in points if point["role"] == role]
        measured = np.array([point["measured"] for point in own])
        predicted = np.array([point["predicted"] for point in own])
        edge = {"linestyle": "", "markeredgecolor": PAPER, "markeredgewidth": 0.5}
        inside = (predicted >= low) & (predicted <= high)
        axes.plot(measured[inside], predicted[inside], label=role, **look, **edge)
        for marker, beyond, place in (("^", predicted > high, high), ("v", predicted < low, low)):
            if beyond.any():
                axes.plot(measured[beyond], np.full(beyond.sum(), place), **{**look, **edge, "marker": marker})
    axes.set_aspect("equal", adjustable="box")
