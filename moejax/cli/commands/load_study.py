"""Load the study of ``moejax study`` and ``moejax launch``, from a config file or a study's folder."""

from __future__ import annotations

import argparse

from moejax.cli.commands.config import load, read
from moejax.study.run import read_study
from moejax.study.study import Study, study_of
from moejax.train.training import Training


def load_study(arguments: argparse.Namespace) -> tuple[Study, str]:
    """Return the study and its folder. A config file of one training gives a study of it."""
    if not arguments.config:
        return read_study(arguments.out), str(arguments.out)
    if "architecture" in read(arguments.config):
        study = study_of(load(Training, arguments.config, arguments.overrides))
    else:
        study = load(Study, arguments.config, arguments.overrides)
    return study, str(arguments.out or f"runs/{study.name}")
