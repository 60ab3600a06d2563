"""Profile some steps of a training with JAX's profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

PROFILE = "profile"


class Profile:
    """A recorder of the steps ``first`` to ``last``, counted over trunk and branches; ``None`` records nothing."""

    def __init__(self, steps: tuple[int, int] | None, folder: Path, log: Callable[[str], None]):
        self._first, self._last = steps or (0, 0)
        self._folder, self._log = folder / PROFILE, log
        self._recording, self._recorded = False, steps is None

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which to take a step."""
        if self._first <= number <= self._last and not (self._recording or self._recorded):
            jax.profiler.start_trace(str(self._folder))
            self._recording = True
        return jax.profiler.StepTraceAnnotation("step", step_num=number) if self._recording else _NOTHING

    def after(self, number: int, metrics: Any) -> None:
        """Stop recording after the last step, once the devices have finished it."""
        if self._recording and number >= self._last:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Stop recording, wherever the training ended."""
        if self._recording:
            self._recording, self._recorded = False, True
            jax.profiler.stop_trace()
            self._log(
                f"The profile is in {self._folder}; open it by xprof --logdir {self._folder} (pip install xprof), or "
                f"its trace.json.gz at ui.perfetto.dev."
            )
        elif not self._recorded:
            self._recorded = True
            self._log(f"None of the steps {self._first} to {self._last} was taken, so there is no profile of them.")


_NOTHING = contextlib.nullcontext()
