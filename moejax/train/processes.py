"""Coordinate the processes of one training: discovery, agreement and joint exit.

Agreement uses the coordination service of ``jax.distributed``, not the devices. Thus every wait has a time limit, and
nothing needs to be compiled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax

# JAX has no public name for the processes' key-value store; Orbax uses it in the same way.
from jax._src import distributed

# JAX has no public name either for the address that it derives from Slurm's variables.
from jax._src.clusters import SlurmCluster
from jax.errors import JaxRuntimeError

from moejax.errors import CoordinatedError, UserError
from moejax.folder import changes
from moejax.say import say
from moejax.wording import says

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""Timeout for waiting for other processes, unless their work has unknown length."""

_LONGER_SECONDS = 30
"""Extra seconds before JAX's own timeout."""

HEARTBEAT_SECONDS = 60
"""Heartbeat timeout after which the other processes regard a process as dead and end."""


_TELLING_SECONDS = 10.0
"""Interval at which a process publishes its progress, in seconds."""

_LOOKING_SECONDS = 60.0
"""Interval at which a waiting process checks and reports the others' progress, in seconds."""

_agreements = itertools.count()
"""Counter of agreements, which all processes make in the same order."""


class SharedProgress:
    """Progress of each process in a task of unknown length, visible to the others while they wait."""

    def __init__(self, client: Any, place: str, own: int, waiting: Callable[[int, int], None]):
        self._client, self._own = client, own
        self.place = place
        """Prefix of its keys."""
        self.waiting = waiting
        """Callback that receives the process that others wait for, and its progress."""
        self._done, self._lock, self._over = 0, threading.Lock(), threading.Event()

    def add(self, amount: int) -> None:
        """Add progress; callable from any thread."""
        with self._lock:
            self._done += amount

    def of(self, process: int) -> int:
        """Return the last known progress of a process."""
        try:
            return int(self._client.key_value_try_get(f"{self.place}/{process}"))
        # The process has not published anything yet.
        except JaxRuntimeError:
            return 0

    def __enter__(self) -> SharedProgress:
        if self._client is not None:
            threading.Thread(target=self._tell, name="progress", daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()

    def _tell(self) -> None:
        told = 0
        while not self._over.wait(_TELLING_SECONDS):
            if self._done != told:
                told = self._done
                with contextlib.suppress(JaxRuntimeError):
                    self._client.key_value_set(f"{self.place}/{self._own}", str(told), allow_overwrite=True)


class ProcessGroup:
    """The processes of one training, from the perspective of this one; a group of one without others.

    Every process makes the same calls in the same order. Values are plain data and pass through the key-value store.
    """

    def __init__(self, wait_seconds: float = WAIT_SECONDS):
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._wait = wait_seconds
        self._to_delete: list[str] = []
        """Key prefixes of the main process that others may still read."""

    @property
    def is_main(self) -> bool:
        """Return whether this is process 0, which writes files and prints for all."""
        return self.index == 0

    def progress(self, waiting: Callable[[int, int], None]) -> SharedProgress:
        """Return the progress of a task that all processes begin now.

        ``waiting(process, done)`` is called repeatedly in the main process while it waits.
        """
        return SharedProgress(self._client, f"moejax/progress/{next(_agreements)}", self.index, waiting)

    @contextlib.contextmanager
    def leaving_together(self) -> Iterator[SharedProgress]:
        """Wait for every process at the exits that all processes take. JAX ends processes that left, and then the
        others, if one of them stays longer than ``HEARTBEAT_SECONDS``.

        Yield the progress, which extends the wait for a process with remaining work.
        """
        with self.progress(lambda process, done: None) as progress:
            try:
                yield progress
            except (CoordinatedError, SystemExit):
                self.barrier(progress=progress)
                raise
            self.barrier(progress=progress)

    def all_gather(
        self, value: T, *, wait_seconds: float | None = None, progress: SharedProgress | None = None
    ) -> list[T]:
        """Return the values of all processes, in the order of their indices. A value is plain data.

        The main process reads the values one by one and publishes them together. This takes four requests per process
        instead of one per pair. With ``progress``, the timeout restarts whenever a process advances.

        Raises:
          UserError: a process did not arrive in time.
          JaxRuntimeError: the others cannot be reached.
        """
        if self.count == 1:
            return [value]
        place, wait = self._begin(), wait_seconds or self._wait
        text = json.dumps(value)
        self._client.key_value_set(f"{place}/{self.index}", text)
        if not self.is_main:
            self._wait_for(f"{place}/0", 0, wait, progress)
            # The main process has arrived, so it will answer after waiting for others. JAX reports its death.
            return self._result(self._wait_for(f"{place}/all", 0, math.inf))
        found = [json.loads(text)]
        try:
            for process in range(1, self.count):
                found.append(json.loads(self._wait_for(f"{place}/{process}", process, wait, progress)))
        except UserError as error:
            self._client.key_value_set(f"{place}/all", json.dumps({"missing": str(error)}))
            raise
        self._client.key_value_set(f"{place}/all", json.dumps({"values": found}))
        # All processes have arrived, so nobody reads earlier agreements any more.
        for read in self._to_delete:
            self._client.key_value_delete(read)
        self._to_delete = [place] if progress is None else [place, progress.place]
        return found

    def broadcast(self, value: T, *, wait_seconds: float | None = None) -> T:
        """Return the main process's value in every process; the main process does not wait.

        Raises:
          UserError: the main process did not arrive in time.
        """
        if self.count == 1:
            return value
        place = self._begin()
        if self.is_main:
            text = json.dumps({"values": [value]})
            self._client.key_value_set(f"{place}/all", text)
            self._to_delete.append(place)
        else:
            text = self._wait_for(f"{place}/all", 0, wait_seconds or self._wait)
        return self._result(text)[0]

    @property
    def _client(self) -> Any:
        """Return the client of the key-value store; None in a group of one."""
        return distributed.global_state.client if self.count > 1 else None

    def _begin(self) -> str:
        """Return the key prefix of the next agreement."""
        return f"moejax/{next(_agreements)}"

    @staticmethod
    def _result(text: str) -> list[Any]:
        result = json.loads(text)
        if "missing" in result:
            raise UserError(result["missing"])
        return result["values"]

    def _wait_for(self, key: str, process: int, wait: float, progress: SharedProgress | None = None) -> str:
        """Return the value that ``process`` writes at ``key``, waiting for it."""
        waited, seen = 0.0, 0
        while True:
            part = min(wait - waited, _LOOKING_SECONDS if progress is not None or wait == math.inf else wait)
            try:
                return self._client.blocking_key_value_get(key, int(1000 * part))
            except JaxRuntimeError as error:
                if "DEADLINE" not in str(error):
                    # The coordination service is lost.
                    raise
                waited += part
                done = seen if progress is None else progress.of(process)
                if done > seen:
                    waited, seen = 0.0, done
                if waited >= wait:
                    raise UserError(
                        f"Process {self.index} of {self.count} has waited {wait:.0f} s for process {process}; see "
                        f"what that one said. The same command goes on from the newest checkpoint."
                    ) from error
                if progress is not None and self.is_main:
                    progress.waiting(process, done)

    def run_or_abort(
        self, work: Callable[[], T], *, wait_seconds: float | None = None, progress: SharedProgress | None = None
    ) -> T:
        """Run ``work`` in every process; if it fails in one, all of them end.

        A group of one re-raises exceptions of ``work`` other than ``UserError``.

        Raises:
          CoordinatedError: the error of a process, in the main process.
          SystemExit: in the other processes, which print nothing except bugs of moejax that they meet.
        """
        problem, result = None, None
        try:
            result = work()
        except UserError as error:
            problem = str(error)
        # A process that lost the others cannot communicate any more.
        except JaxRuntimeError:
            raise
        except Exception as error:
            if self.count == 1:
                raise
            if isinstance(error, OSError):
                problem = f"a file cannot be used ({error.filename}: {says('the system', error)})"
            else:
                traceback.print_exception(error)
                problem = f"it met a mistake of moejax's ({says('Python', error)})"
        problems = self.all_gather(problem, wait_seconds=wait_seconds, progress=progress)
        failed = [number for number, text in enumerate(problems) if text is not None]
        if not failed:
            return result  # type: ignore[return-value]
        if not self.is_main:
            raise SystemExit(2)
        text = problems[failed[0]]
        raise CoordinatedError(text if len(failed) == self.count else f"Process {failed[0]} of {self.count}: {text}")

    def run_on_main(self, work: Callable[[], T], *, wait_seconds: float | None = None) -> T:
        """Run ``work`` only in the main process, and return its result, which is plain data, in every process.

        Raises: as ``run_or_abort``.
        """
        return self.broadcast(self.run_or_abort(lambda: work() if self.is_main else None, wait_seconds=wait_seconds))  # type: ignore[return-value]

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run ``work`` only in the process that arrives first, and return its result, which is plain data, in every
        process that arrives. The others may be waiting for one of these in a library.

        Raises:
          UserError: from ``work``, in every process that arrives.
          JaxRuntimeError: the others cannot be reached.
        """
        if self.count == 1:
            return work()
        place = self._begin()
        try:
            self._client.key_value_set(f"{place}/first", str(self.index))
        except JaxRuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
            first = int(self._wait_for(f"{place}/first", 0, self._wait))
            # The first process has arrived, so it will answer. JAX reports its death.
            return self._result(self._wait_for(f"{place}/all", first, math.inf))[0]
        try:
            result = work()
        except UserError as error:
            self._client.key_value_set(f"{place}/all", json.dumps({"missing": str(error)}))
            raise
        self._client.key_value_set(f"{place}/all", json.dumps({"values": [result]}))
        return result

    def barrier(self, *, wait_seconds: float | None = None, progress: SharedProgress | None = None) -> None:
        """Wait until every process has arrived."""
        self.all_gather(None, wait_seconds=wait_seconds, progress=progress)

    def abort(self, text: str) -> NoReturn:
        """End a training for a reason known to all processes.

        Raises:
          CoordinatedError: with ``text``, in the main process.
          SystemExit: in the other processes, which print nothing.
        """
        raise CoordinatedError(text) if self.is_main else SystemExit(2)

    def check_same(self, what: str, value: Any) -> None:
        """Abort if the processes were given different values.

        Raises:
          CoordinatedError: the values differ; the message names the differences.
        """
        values = self.all_gather(value)
        self.run_or_abort(lambda: _check_same(what, values))


def _check_same(what: str, values: list[Any]) -> None:
    for number, other in enumerate(values):
        different = [f"{path} is {a!r} and {b!r}" for path, (a, b) in changes(values[0], other).items()]
        if different:
            raise UserError(
                f"Processes 0 and {number} were given different {what}: {'; '.join(different[:5])}. Give all the same."
            )


@contextlib.contextmanager
def init_distributed(
    coordinator: str | None, processes: int | None, process: int | None, *, wait_seconds: float = WAIT_SECONDS
) -> Iterator[None]:
    """Join ``jax.distributed`` inside the context. Arguments that are None come from the environment: Slurm, Open MPI,
    Kubernetes, Cloud TPU.

    Raises:
      UserError: the coordinator is unknown, its port is in use, other processes do not arrive, or the environment is
        incomplete.
    """
    by_slurm = coordinator is None and SlurmCluster.is_env_present()
    address = SlurmCluster.get_coordinator_address(None, None) if by_slurm else coordinator
    if address is not None:
        _check_address(address, listens=process == 0 or (by_slurm and SlurmCluster.get_process_id() == 0))
    all_of_them = "processes" if processes is None else f"{processes} processes"
    met = f"Not all {all_of_them} met at {address or 'the coordinator'} within {wait_seconds:.0f} s"
    try:
        with _time_limit(
            wait_seconds,
            f"{met}; check that all are started, with the same --coordinator and --processes and each with its own "
            f"--process, and that they can reach it.",
        ):
            jax.distributed.initialize(
                coordinator_address=coordinator,
                num_processes=processes,
                process_id=process,
                initialization_timeout=int(wait_seconds) + _LONGER_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except (ValueError, TypeError) as error:
        raise UserError(
            f"The other processes are not known ({says('JAX', error)}); give --coordinator HOST:PORT, --processes N "
            f"and --process I, or start them by Slurm, Open MPI, Kubernetes or on Cloud TPU."
        ) from error
    yield
    jax.distributed.shutdown()


@contextlib.contextmanager
def _time_limit(seconds: float, text: str) -> Iterator[None]:
    """End the process with a message if the block takes longer; JAX would end it with a stack trace."""

    def end() -> None:
        say(f"moejax: {text}")
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _check_address(coordinator: str, *, listens: bool) -> None:
    """Raise ``UserError`` if this machine cannot resolve the coordinator, or cannot listen there if it must."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--coordinator is {coordinator}; give HOST:PORT, such as 10.0.0.1:8476.")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise UserError(
            f"This machine knows no {host}, where the processes are to meet ({says('the system', error)}); "
            f"give all of them the address of process 0's machine with --coordinator HOST:PORT."
        ) from error
    if not listens:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # SO_REUSEADDR allows a port that was released recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise UserError(
                f"Port {port} of the coordinator {coordinator} cannot be used on this machine "
                f"({says('the system', error)}); give all processes another with --coordinator HOST:PORT."
            ) from error
