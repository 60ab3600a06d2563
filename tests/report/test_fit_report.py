"""The report of one fit."""

import numpy as np
import pytest

from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.panels import FLOPS, LOSS, Panel, Series, draw
from moejax.report.fit_report import ReportedFit, _figures
from moejax.report.plots import Plot, by_name


def drawn(inputs: FigureInputs) -> Figure:
    series = [Series(label="loss", x=[1e20, 1e22], y=[3.0, 2.0])]
    return Figure("Loss by compute", f"By {inputs.name}.", *draw([Panel(x=FLOPS, y=LOSS, series=series)]))


@pytest.mark.parametrize(
    ("source", "title"),
    [
        (Plot.source, "Loss by compute"),
        ("chapter 002, the widget", "Loss by compute, after chapter 002, the widget"),
    ],
)
def test_a_figure_that_a_document_has_is_said_to_be_after_it(source, title):
    sizes, tokens = (np.ravel(x) for x in np.meshgrid(np.geomspace(1e8, 1e10, 3), np.geomspace(1e9, 1e11, 3)))
    design = Design(params_active=sizes, tokens=tokens)
    fit = fit_law(Chinchilla, runs_from(design, np.asarray(HOFFMANN_2022(design))))
    plots = by_name(Plot(name="own", law="chinchilla", shows="loss", source=source, draw=drawn))
    found = _figures(ReportedFit(fit=fit, name="own", file="fit.json"), plots, lambda share, text: None)
    assert found["own"].title == title
    assert "the fit in fit.json" in found["own"].caption
