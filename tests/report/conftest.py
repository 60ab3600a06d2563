"""One study of a known law for all tests of the report."""

from pathlib import Path

import pytest
from known_study import conclude_without_fitting, write_study

from moejax.study.run import Concluded


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A study that has been trained and not concluded."""
    return write_study(tmp_path_factory.mktemp("study") / "known-law")


@pytest.fixture(scope="session")
def concluded(folder) -> Concluded:
    """The same study, concluded: its resamples nearly agree."""
    return conclude_without_fitting(folder, spread=0.02)


@pytest.fixture(scope="session")
def undetermined(folder) -> Concluded:
    """The same runs, if their resamples had agreed about nothing."""
    return conclude_without_fitting(folder, spread=1.5)
