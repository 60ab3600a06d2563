"""Models of a study that differ in seed, learning rate and weight decay alone, trained one by one or packed."""

import os

import pytest

from moejax import run_table
from moejax.architecture import Architecture
from moejax.study.run import train_study
from moejax.study.study import Study
from moejax.train.directory.row import OF_THE_CLOCK
from moejax.train.training import DataConfig, Recipe

SHAPE = {"vocab_size": 257, "model_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
MIXTURE = Architecture(**SHAPE, num_experts=4, top_k=2, expert_hidden=16)


@pytest.fixture
def study(tmp_path):
    lines = (f"the router sends token {number} to some experts and the loss falls.\n" for number in range(400))
    (tmp_path / "text.txt").write_text("".join(lines))
    return Study(
        name="packed",
        models={"a": MIXTURE, "b": MIXTURE, "c": MIXTURE, "dense": Architecture(**SHAPE, dense_hidden=32)},
        recipe=Recipe(
            budgets_tokens=(2_048, 4_096),
            batch_tokens=512,
            data=DataConfig(source=str(tmp_path / "text.txt"), sequence_length=64, validation_tokens=512),
            log_every_steps=2,
        ),
        recipes={"b": {"optimizer": {"learning_rate": 1e-3, "weight_decay": 0.0}}},
        seeds={"c": 1},
    )


@pytest.mark.slow
def test_the_run_table_is_the_same_packed_and_one_by_one(study, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ["MOEJAX_TEST_XLA_FLAGS"])
    tables = []
    for vmap in (1, 3):
        said = []
        path = train_study(
            study,
            tmp_path / str(vmap),
            workers=1,
            vmap=vmap,
            update=lambda share, text, said=said: said.append(text),
        )
        tables.append(run_table.read(path).drop(columns=list(OF_THE_CLOCK)))
    assert any(all(f"{name} " in text for name in "abc") for text in said)
    one_by_one, packed = tables
    counts = [column for column in one_by_one if one_by_one[column].dtype.kind != "f"]
    assert packed[counts].drop(columns="expert_loads").equals(one_by_one[counts].drop(columns="expert_loads"))
    for column in set(one_by_one) - set(counts):
        assert packed[column].to_numpy() == pytest.approx(
            one_by_one[column].to_numpy(), rel=1e-4, abs=1e-5, nan_ok=True
        )
