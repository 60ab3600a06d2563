"""``docs/settings.md``: what config files may set."""

from pathlib import Path

from moejax.reference import settings

PAGE = Path("docs", "settings.md").read_text()


def test_the_page_is_what_make_settings_writes():
    assert settings.page() == PAGE, "A setting has changed; run make settings."


def test_a_row_has_the_range_and_the_default_of_a_setting():
    shown = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    (learning_rate,) = (row for row in shown if "`recipe.optimizer.learning_rate`" in row[0])
    assert learning_rate[1:3] == ["a number from 0 to 1e+06", "`0.003`"]
    (optimizer,) = (row for row in shown if "`recipe.optimizer.name`" in row[0])
    assert optimizer[1] == "`adamw`, `muon`"
