"""The study that ``moejax study`` and ``moejax launch`` are given: by a config file, or by the folder of one."""

from __future__ import annotations

import argparse

from moejax.cli.commands.config import load, read
from moejax.study.run import read_study
from moejax.study.study import Study, study_of
from moejax.train.training import Training


def load_study(arguments: argparse.Namespace) -> tuple[Study, str]:
    """The study, and its folder; a config file of one training is a study of it."""
    if not arguments.config:
        return read_study(arguments.out), str(arguments.out)
    if "architecture" in read(arguments.config):
        study = study_of(load(Training, arguments.config, arguments.overrides))
    else:
        study = load(Study, arguments.config, arguments.overrides)
    return study, str(arguments.out or f"runs/{study.name}")
