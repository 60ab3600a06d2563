"""The processes of one training: how they find each other, what they agree on, and how they end together.

Agreement goes through the coordination service of ``jax.distributed``, not through the devices, so that every wait has
a time limit and nothing needs to be compiled for it.
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

# JAX has the processes' key-value store, but no public name for it; Orbax uses it in the same way.
from jax._src import distributed

# Nor has it one for the address that it takes from Slurm's variables.
from jax._src.clusters import SlurmCluster
from jax.errors import JaxRuntimeError

from moejax.errors import CoordinatedError, UserError
from moejax.folder import changes
from moejax.say import say
from moejax.wording import says

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""How long a process waits for the others, unless it waits for a work of unknown length."""

_LONGER_SECONDS = 30
"""So much later than we would JAX give up."""

HEARTBEAT_SECONDS = 60
"""Silence after which the others count a process as dead and end."""


_TELLING_SECONDS = 10.0
"""How often a process tells the others how far it is."""

_LOOKING_SECONDS = 60.0
"""How often one that waits looks how far the others are, and says so."""

_agreements = itertools.count()
"""All processes agree on the same things in the same order."""


class SharedProgress:
    """How far each process is with a task of unknown length, for the others to see while they wait."""

    def __init__(self, client: Any, place: str, own: int, waiting: Callable[[int, int], None]):
        self._client, self._own = client, own
        self.place = place
        """Where its keys lie."""
        self.waiting = waiting
        """Told now and then which process is waited for, and how far it is."""
        self._done, self._lock, self._over = 0, threading.Lock(), threading.Event()

    def add(self, amount: int) -> None:
        """So much more is done, in any thread."""
        with self._lock:
            self._done += amount

    def of(self, process: int) -> int:
        """How much a process has done, as far as it is known here."""
        try:
            return int(self._client.key_value_try_get(f"{self.place}/{process}"))
        # It has told nothing yet.
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
    """The processes of one training, seen from this one; a group of one where there are no others.

    Every process makes the same calls in the same order; values are plain data and pass through the key-value store.
    """

    def __init__(self, wait_seconds: float = WAIT_SECONDS):
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._wait = wait_seconds
        self._to_delete: list[str] = []
        """Where the main process has keys of agreements that others may still read."""

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which writes files and prints for all."""
        return self.index == 0

    def progress(self, waiting: Callable[[int, int], None]) -> SharedProgress:
        """Progress of a task that all processes begin now.

        ``waiting(process, done)`` is called now and then in the main process while it waits.
        """
        return SharedProgress(self._client, f"moejax/progress/{next(_agreements)}", self.index, waiting)

    @contextlib.contextmanager
    def leaving_together(self) -> Iterator[SharedProgress]:
        """At the end, wait for every process on the ways out that all of them take: JAX ends those that have left, and
        with them the others, if one of them stays for longer than ``HEARTBEAT_SECONDS``.

        Yields the progress by which a process that has more to do is waited for.
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
        """Every process's value, in the order of their indices. A value is plain data.

        The main process reads them one by one and publishes them together: four requests a process, not one for every
        pair. With ``progress``, a process is waited for as long as it advances: the limit is for standing still.

        Raises:
          UserError: a process has not come here in time.
          JaxRuntimeError: the others cannot be reached.
        """
        if self.count == 1:
            return [value]
        place, wait = self._begin(), wait_seconds or self._wait
        text = json.dumps(value)
        self._client.key_value_set(f"{place}/{self.index}", text)
        if not self.is_main:
            self._wait_for(f"{place}/0", 0, wait, progress)
            # The main process is there, so it answers, whomever it waits for; that it has died, JAX would tell.
            return self._result(self._wait_for(f"{place}/all", 0, math.inf))
        found = [json.loads(text)]
        try:
            for process in range(1, self.count):
                found.append(json.loads(self._wait_for(f"{place}/{process}", process, wait, progress)))
        except UserError as error:
            self._client.key_value_set(f"{place}/all", json.dumps({"missing": str(error)}))
            raise
        self._client.key_value_set(f"{place}/all", json.dumps({"values": found}))
        # All have come here, so nobody reads what was agreed before.
        for read in self._to_delete:
            self._client.key_value_delete(read)
        self._to_delete = [place] if progress is None else [place, progress.place]
        return found

    def broadcast(self, value: T, *, wait_seconds: float | None = None) -> T:
        """The main process's value, in every process; the main process waits for none.

        Raises:
          UserError: the main process has not come here in time.
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
        """Of the key-value store; None where there are no others."""
        return distributed.global_state.client if self.count > 1 else None

    def _begin(self) -> str:
        """Where the keys of the next agreement lie."""
        return f"moejax/{next(_agreements)}"

    @staticmethod
    def _result(text: str) -> list[Any]:
        result = json.loads(text)
        if "missing" in result:
            raise UserError(result["missing"])
        return result["values"]

    def _wait_for(self, key: str, process: int, wait: float, progress: SharedProgress | None = None) -> str:
        """What ``process`` writes at ``key``, once it does."""
        waited, seen = 0.0, 0
        while True:
            part = min(wait - waited, _LOOKING_SECONDS if progress is not None or wait == math.inf else wait)
            try:
                return self._client.blocking_key_value_get(key, int(1000 * part))
            except JaxRuntimeError as error:
                if "DEADLINE" not in str(error):
                    # The others cannot be asked any more.
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

        A group of one raises what ``work`` raises, apart from a ``UserError``.

        Raises:
          CoordinatedError: what a process raised, in the main process.
          SystemExit: in the others, which print nothing, except a bug of moejax's, which is printed where it was met.
        """
        problem, result = None, None
        try:
            result = work()
        except UserError as error:
            problem = str(error)
        # Who has lost the others cannot ask them.
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
        """Run ``work`` in the main process alone, and return in every process what it returned, which is plain data.

        Raises: as ``run_or_abort``.
        """
        return self.broadcast(self.run_or_abort(lambda: work() if self.is_main else None, wait_seconds=wait_seconds))  # type: ignore[return-value]

    def barrier(self, *, wait_seconds: float | None = None, progress: SharedProgress | None = None) -> None:
        """Wait until every process is here."""
        self.all_gather(None, wait_seconds=wait_seconds, progress=progress)

    def abort(self, text: str) -> NoReturn:
        """End a training for a reason that all processes know.

        Raises:
          CoordinatedError: ``text``, in the main process.
          SystemExit: in the others, which print nothing.
        """
        raise CoordinatedError(text) if self.is_main else SystemExit(2)

    def check_same(self, what: str, value: Any) -> None:
        """Abort if the processes were given different values.

        Raises:
          CoordinatedError: they were; the sentence names the differences.
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
    """Join ``jax.distributed`` while this lasts. What is None comes from the environment: Slurm, Open MPI, Kubernetes,
    Cloud TPU.

    Raises:
      UserError: the coordinator is not known or its port is taken, the others do not come, or the environment tells
        too little.
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
    """End the process with a sentence if the block takes longer: JAX would end it with a stack trace of its own."""

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
    """Whether this machine knows the coordinator's, and may listen there if it is to."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
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
        # A port that was just given up is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            raise UserError(
                f"Port {port} of the coordinator {coordinator} cannot be used on this machine "
                f"({says('the system', error)}); give all processes another with --coordinator HOST:PORT."
            ) from error
