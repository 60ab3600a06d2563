"""A study of three models, and one of two stages, that train in seconds."""

import pytest

CONFIG = '''
"""Three models, three budgets, seconds."""
from ml_collections import ConfigDict

def get_config():
    shape = dict(vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8)
    config = ConfigDict()
    config.name = "three"
    config.models = {
        "dense": shape | dict(dense_hidden=32),
        "wide": shape | dict(dense_hidden=64, model_dim=24),
        "moe": shape | dict(num_experts=4, top_k=2, expert_hidden=16),
    }
    config.recipe = dict(
        budgets_tokens=[24_576, 49_152, 98_304],
        batch_tokens=1_024,
        data=dict(sequence_length=64, validation_tokens=4_096),
        optimizer=dict(learning_rate=1e-2, warmup_tokens=4_096),
        checkpoint_tokens=49_152,
        log_every_steps=4,
    )
    config.analysis = dict(laws=["effective_params"], resamples=20, decision_flops=1e11)
    return config
'''


STAGED = '''
"""Two stages of two models, seconds."""
from ml_collections import ConfigDict

def deeper(before):
    return dict(models={f"deep-{n}": before.architecture | dict(num_layers=n) for n in (2, 3)})

def get_config():
    shape = dict(vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8)
    config = ConfigDict()
    config.name = "staged"
    config.models = {f"wide-{n}": shape | dict(dense_hidden=n) for n in (16, 32)}
    config.recipe = dict(
        budgets_tokens=[32_768, 131_072], batch_tokens=1_024, checkpoint_tokens=16_384, log_every_steps=4,
        data=dict(sequence_length=64, validation_tokens=4_096),
        optimizer=dict(learning_rate=1e-2, warmup_tokens=8_192),
    )
    config.analysis = dict(laws=[])
    config.stages = [dict(name="width"), dict(name="depth", make=deeper)]
    return config
'''


@pytest.fixture(scope="session")
def config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "three.py"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="session")
def staged_config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "staged.py"
    path.write_text(STAGED)
    return path
