"""Files of papers' procedures."""

import pandas as pd

from moejax.papers.recipes import write_recipe


def test_a_recipe_creates_its_output_folder(tmp_path):
    runs = pd.DataFrame({"params_active": [1e8], "tokens": [1e9], "loss": [3.0]})
    write_recipe(tmp_path / "study" / "tian", "tian", {}, {"leverages": runs}, runs, best="", laws={})
    assert {path.name for path in (tmp_path / "study" / "tian").iterdir()} >= {"fits", "figures", "leverages.csv"}
