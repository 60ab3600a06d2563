"""``moejax fit --law SCORES --loss-law LAW``: a law of scores on a law of the loss, both from one table of runs."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from typing import Any

from moejax import run_table
from moejax.cli.commands.fit import write_fit
from moejax.cli.commands.fit_answers import answer, asked_of
from moejax.cli.commands.fit_options import law_of, penalty_of, search_of, starts_of
from moejax.cli.commands.predict import named_law
from moejax.cli.commands.run_table_options import read_table, read_without_words
from moejax.cli.number import pairs
from moejax.cli.out_folder import out_folder
from moejax.cli.progress import progress
from moejax.fit.chain import chain, with_loss_design
from moejax.fit.column_names import is_formula, law_of_formula
from moejax.fit.covariance import with_uncertainty
from moejax.fit.fit_law import fit_law
from moejax.fit.summary import summary
from moejax.interval import check_level
from moejax.laws import LAWS
from moejax.laws.chained_law import chained_law
from moejax.report import render
from moejax.say import say


def run(arguments: argparse.Namespace) -> int:
    """Read the runs for either law, fit both, chain them, answer, print."""
    score_law, loss_law = law_of(arguments), _loss_law(arguments)
    asked = asked_of(chained_law(loss_law, score_law), (), arguments)
    level = check_level(arguments.level)
    scores = read_table(arguments, score_law)
    losses = read_without_words(_of_losses(arguments), loss_law)
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
    how = {"covariance": asked.covariance, "by": arguments.by}
    with out_folder(arguments.out), progress() as show:
        of_loss, of_score = (
            with_uncertainty(fit_law(law, one.runs, progress=show, **options), one.runs, **how, dropped=one.dropped)
            for law, one in ((loss_law, losses), (score_law, scores))
        )
        result = chain(of_loss, of_score, read.runs)
        found = {
            "notes": list(dict.fromkeys((*scores.notes, *losses.notes))),
            "read": {"loss": result.output, "group": arguments.group, "weight": arguments.weight},
            **answer(asked, result, read, None, level, arguments.by),
        }
        said = summary(result, level, **found)
        write_fit(arguments.out, said, result, read)
    if arguments.out:
        say(f"Wrote fit.json, summary.txt and predictions.csv to {arguments.out}.")
    render.show(said, as_json=arguments.json)
    return 0


def _loss_law(arguments: argparse.Namespace) -> type:
    text = arguments.loss_law
    if not is_formula(text):
        return LAWS[named_law(text)]
    return law_of_formula(text, run_table.read_as_it_is(arguments.runs), mapping=dict(pairs(arguments.map, "--map")))


def _of_losses(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments by which the losses are read: ``--loss`` names the column of the score."""
    own = copy.copy(arguments)
    own.loss = "loss"
    return own
