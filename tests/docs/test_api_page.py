"""``docs/api.md``: the Python names with their purposes."""

from pathlib import Path

from moejax.reference import api


def test_the_page_is_what_make_settings_writes():
    assert api.page() == Path("docs", "api.md").read_text(), (
        "A public name or its docstring has changed; run make settings."
    )
