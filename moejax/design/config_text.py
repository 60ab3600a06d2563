"""A config file that trains what was designed, as the text of a Python file."""

from __future__ import annotations

import dataclasses
from typing import Any

from moejax.design.build import Built


def config_text(built: Built, name: str, says: str, sequence_length: int) -> str:
    """A file for ``moejax train --config``; ``says`` is a line of how the design came about.

    Batch and learning rate are left to the law that the trainer knows ("auto"); the data are for the user to name.
    """
    architecture = {
        f.name: value
        for f in dataclasses.fields(built.architecture)
        if (value := getattr(built.architecture, f.name)) != f.default
    }
    settings = "".join(f"        {key}={_written(value)},\n" for key, value in architecture.items())
    tokens = round(built.tokens / sequence_length) * sequence_length
    return f'''"""{says}

Command:  moejax train --config=FILE --config.recipe.data.source=DATA
Cost:     {built.measures["flops"]:.3g} training FLOPs; {built.measures["params_total"]:,.0f} parameters,
          {built.measures["params_active"]:,.0f} of them active.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The training."""
    config = ConfigDict()
    config.name = "{name}"
    config.seed = 0
    config.architecture = dict(
{settings}    )
    config.recipe = dict(
        budgets_tokens=[{tokens:_}],
        batch_tokens="auto",
        data=dict(sequence_length={sequence_length}),
        optimizer=dict(learning_rate="auto", warmup_tokens={max(1, tokens // 100):_}),
    )
    return config
'''


def _written(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return repr(dataclasses.asdict(value))
    return f'"{value}"' if isinstance(value, str) else repr(value)
