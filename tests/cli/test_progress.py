"""Progress says how long a stage still takes, and the next stage starts its own reckoning."""

import re

import pytest

from moejax.cli import progress


@pytest.mark.parametrize(("share", "said"), [(1e-4, False), (0.02, True)])
def test_what_is_left_is_not_said_of_the_first_steps_after_minutes_of_compiling(monkeypatch, capsys, share, said):
    """A study of minutes had two days left."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress_display() as update:
        update(0.0, "compiling")
        now = 300.0
        update(share, "training")
    assert (" left" in capsys.readouterr().err) == said


def test_every_stage_of_a_fit_says_what_is_left_of_it(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.progress() as show:
        for stage in ("screening", "polishing"):
            for done in range(0, 101, 5):
                show(stage, done, 100)
                now += 10.0
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if "polishing" in line and "left" in line]) > 5
    for line in lines:
        if left := re.search(r"about (\d+):(\d+) left", line):
            # Five hundredths take 10 seconds.
            assert 60 * int(left[1]) + int(left[2]) == 2 * (100 - int(line.split("%")[0]))
