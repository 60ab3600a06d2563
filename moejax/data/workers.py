"""Run work in processes that end with their parent, even if it is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from moejax.errors import UserError
from moejax.say import say

SECONDS_BETWEEN_LOOKS = 0.5

BytesCallback = Callable[[int], None]
"""Callback ``tick(amount)``, where ``amount`` is the number of bytes of text or tokens processed since the last call.
"""

_worker: dict[str, Any] = {}
"""Arguments with which a worker process was started."""


class WorkStopped(Exception):
    """Exception that ends a worker's task at the request of the parent process."""


def in_processes(
    work: Callable[..., Any], tasks: Sequence[tuple], workers: int, *, common: tuple, look: Callable[[int], None]
) -> Iterator[Any]:
    """Yield the results of ``work(*task, *common, tick)`` as they complete, in any order.

    ``look`` is called periodically with the sum of all ticks. With one worker, the tasks run in this process.

    Raises:
      UserError: a task raised it, or a worker died.
    """
    if workers == 1:
        done = 0

        def tick(amount: int) -> None:
            nonlocal done
            done += amount
            look(done)

        for task in tasks:
            yield work(*task, *common, tick)
        return
    # Start fresh processes: forked ones would inherit this process's lock and copies of JAX's threads.
    context = multiprocessing.get_context("spawn")
    ticks, stop = context.Value("q", 0), context.Event()
    setup = (work, common, ticks, stop, os.getpid())
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=setup) as pool:
        try:
            waiting = {pool.submit(_run, task) for task in tasks}
            while waiting:
                ready, waiting = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                look(ticks.value)
                for future in ready:
                    yield future.result()
        except BrokenProcessPool:
            raise UserError(
                "A worker process died, perhaps because memory ran out; use fewer --workers. Finished shards are "
                "kept; run the same command to resume."
            ) from None
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _begin(work: Any, common: tuple, ticks: Any, stop: Any, parent: int) -> None:
    _worker.update(work=work, common=common, ticks=ticks, stop=stop)
    # The parent handles Ctrl-C and tells the workers when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    end_with(parent)


def _run(task: tuple) -> Any:
    return _worker["work"](*task, *_worker["common"], _tick)


def _tick(amount: int) -> None:
    if _worker["stop"].is_set():
        raise WorkStopped
    with _worker["ticks"].get_lock():
        _worker["ticks"].value += amount


def end_with(parent: int | None) -> None:
    """End this process soon after its parent has ended for any reason; do nothing if ``parent`` is None."""
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        try:
            say("The parent process has ended; this process stops.")
        finally:
            # End the process even if the message cannot be written.
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
