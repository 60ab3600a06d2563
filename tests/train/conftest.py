"""A training of seconds, and a corpus of a few files for it."""

import functools

import pytest
from few_documents import Few
from small_model import SMALL

from moejax.data.sources import NAMED
from moejax.train.loop import train
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import DataConfig, Recipe, Training


@pytest.fixture(autouse=True)
def few_files(monkeypatch):
    """The corpus named ``few``."""
    monkeypatch.setitem(NAMED, "few", lambda reading: [Few()])


@pytest.fixture
def training():
    """A mixture of 2 layers, two budgets, a checkpoint every fourth step."""
    return Training(
        name="small",
        architecture=SMALL.replace(num_experts=8, num_shared_experts=1),
        recipe=Recipe(
            budgets_tokens=(2048, 4096),
            batch_tokens=256,
            data=DataConfig(source="few", sequence_length=32, validation_share=0.2, validation_tokens=512),
            optimizer=OptimizerConfig(learning_rate=1e-2, warmup_tokens=512, decay_share=0.4),
            log_every_steps=3,
            checkpoint_tokens=1024,
        ),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Rows and folder of a training, which a module trains once; who writes takes a copy."""

    @functools.cache
    def find(training):
        folder = tmp_path_factory.mktemp("trained") / "out"
        return train(training, folder), folder

    return find
