"""Implement ``moejax fit --law SCORES --loss-law LAW``: chain a law of scores to a law of the loss, from one table."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from typing import Any

import numpy as np

from moejax import run_table
from moejax.cli.commands.fit import write_fit, written
from moejax.cli.commands.fit_answers import answer, asked_of
from moejax.cli.commands.fit_options import law_of, penalty_of, search_of, starts_of
from moejax.cli.commands.run_table_options import read_table, read_without_words, splits_of
from moejax.cli.number import pairs
from moejax.cli.out_folder import out_folder
from moejax.cli.progress import progress
from moejax.fit.chain import chain, with_loss_design
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection import held_out_runs, holdout
from moejax.fit.summary import summary
from moejax.fit.tables.column_names import is_formula, law_of_formula
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.interval import check_level
from moejax.laws import LAWS
from moejax.laws.predict import law_name
from moejax.laws.scores.chained_law import chained_law
from moejax.report import render
from moejax.say import say


def run(arguments: argparse.Namespace) -> int:
    """Read the runs for each law, fit both, chain them, answer questions, and print."""
    score_law, loss_law = law_of(arguments), _loss_law(arguments)
    law = chained_law(loss_law, score_law)
    asked = asked_of(law, next(iter(law.outputs)), (), arguments)
    level = check_level(arguments.level)
    scores = read_table(arguments, score_law)
    losses = read_without_words(_of_losses(arguments, score_law), loss_law)
    for note in losses.notes:
        if note not in scores.notes:
            say(note)
    read = replace(scores, runs=with_loss_design(losses.runs, losses.rows, scores.runs, scores.rows))
    options: dict[str, Any] = {
        "penalty": penalty_of(arguments),
        "starts": starts_of(arguments),
        "search": search_of(arguments),
        "seed": arguments.seed,
    }
    how, splits = {"covariance": asked.covariance, "by": arguments.by}, splits_of(read, arguments)
    with out_folder(arguments.out), progress() as show:

        def fitted(without: np.ndarray) -> FitResult:
            """Return both laws, chained and fitted without the given rows of the scores."""
            of_loss, of_score = (
                with_uncertainty(fit_law(law, runs, progress=show, **options), runs, **how, dropped=one.dropped)
                for law, one, runs in (
                    (loss_law, losses, losses.runs.only(~np.isin(losses.rows, scores.rows[without]))),
                    (score_law, scores, scores.runs.only(~without)),
                )
            )
            return chain(of_loss, of_score, read.runs.only(~without))

        result, predicted = fitted(np.zeros(len(read.runs), bool)), None
        found: dict[str, Any] = {
            "notes": list(dict.fromkeys((*scores.notes, *losses.notes))),
            "read": {"loss": result.output, "group": arguments.group, "weight": arguments.weight},
            **answer(asked, result, read, None, level, arguments.by),
        }
        if held_out := holdout.hold_out_of(lambda split: fitted(split.held_out), read.runs, splits, show):
            predicted = held_out_runs.held_out_runs(held_out, read.rows, level)
            found |= held_out_runs.found(held_out, predicted)
        said = summary(result, level, **found)
        write_fit(arguments.out, said, result, read, predicted)
    if arguments.out:
        say(written(arguments.out, predicted))
    render.show(said, as_json=arguments.json)
    return 0


def _loss_law(arguments: argparse.Namespace) -> type:
    text = arguments.loss_law
    if not is_formula(text):
        return LAWS[law_name(text)]
    return law_of_formula(text, run_table.read_as_it_is(arguments.runs), mapping=dict(pairs(arguments.map, "--map")))


def _of_losses(arguments: argparse.Namespace, score_law: type) -> argparse.Namespace:
    """Return the arguments for reading losses, if ``--loss`` names the score's column instead."""
    own = copy.copy(arguments)
    if own.loss in score_law.outputs:
        own.loss = "loss"
    return own
