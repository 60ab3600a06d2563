"""A training killed at random instants, save moments among them, ends as one that was never killed."""

import pytest
from killing import kill_and_compare


@pytest.mark.slow
def test_a_training_killed_twice_ends_the_same(tmp_path):
    met, _ = kill_and_compare(tmp_path, kills=2, processes=1, seed=0)
    assert sum(met.values()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_killed_thirty_times_ends_the_same(tmp_path, processes):
    met, _ = kill_and_compare(tmp_path, kills=30, processes=processes, seed=1)
    assert sum(met.values()) == 30
    assert len(met) == 4
