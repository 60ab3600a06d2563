"""``docs/settings.md``: what config files may set."""

import json
from pathlib import Path

from moejax.cli import settings, settings_page

PAGE = Path("docs", "settings.md").read_text()


def test_the_page_is_what_make_settings_writes():
    assert settings_page.page() == PAGE, "A setting has changed; run make settings."


def test_every_setting_of_the_command_line_has_a_row_in_which_its_default_stands():
    shown = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    names = [row[0].removeprefix("| ").strip("`") for row in shown]
    kinds = json.loads(settings.FILE.read_text())
    assert len(names) == sum(map(len, kinds.values()))
    (learning_rate,) = (row for row in shown if "`recipe.optimizer.learning_rate`" in row[0])
    assert learning_rate[1:3] == ["a number from 0 to 1e+06", "`0.003`"]
    (optimizer,) = (row for row in shown if "`recipe.optimizer.name`" in row[0])
    assert optimizer[1] == "text: `adamw`, `muon`"
