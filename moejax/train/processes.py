"""Coordinate the processes of one training run: start, discovery, agreement and joint exit.

Agreement uses the coordination service of ``jax.distributed``, not the devices. Thus every wait has a time limit, and
nothing needs to be compiled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn, TypeVar

import jax

# JAX has no public name for the processes' key-value store; Orbax uses it in the same way.
from jax._src import distributed
from jax.errors import JaxRuntimeError

from moejax.errors import OURS, CoordinatedError, UserError
from moejax.folder import changes
from moejax.say import say
from moejax.wording import counted, says, told

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""Timeout for waiting for other processes, unless the duration of their work is unknown."""

_LONGER_SECONDS = 30
"""Seconds by which JAX's timeout exceeds moejax's, so that moejax's message is shown."""

HASHING_SECONDS = 6 * 3600.0
"""Timeout for waiting at the end of a training run for processes that hash their part of the last checkpoint."""

HEARTBEAT_SECONDS = 60
"""Time without a heartbeat after which the other processes regard a process as dead and end."""

AGAIN = os.EX_TEMPFAIL
"""Exit status of an interrupted training run that resumes at the next start."""

GRACE_SECONDS = 15.0
"""Time for the other processes to end after one has failed."""

_POLL_SECONDS = 0.2

_agreements = itertools.count()
"""Counter of agreements; all processes make them in the same order."""


class ProcessGroup:
    """The processes of one training run, seen from this process. A single process is a group of one.

    Every process makes the same calls in the same order. Values are plain data and pass through the key-value store.
    """

    def __init__(self, wait_seconds: float = WAIT_SECONDS):
        self.index = jax.process_index()
        self.count = jax.process_count()
        self._wait = wait_seconds
        self._to_delete: str | None = None
        """Key prefix of the last agreement, which other processes may still read; used only in the main process."""

    @property
    def is_main(self) -> bool:
        """Return whether this is process 0, which writes files and prints for all."""
        return self.index == 0

    def all_gather(self, value: T, *, wait_seconds: float | None = None) -> list[T]:
        """Return the values of all processes, in the order of their indices. A value is plain data.

        The main process reads the values one by one and publishes them together. This takes four requests per process
        instead of one per pair of processes.

        Raises:
          UserError: a process did not arrive in time.
          JaxRuntimeError: the other processes cannot be reached.
        """
        if self.count == 1:
            return [value]
        place, wait = self._begin(), wait_seconds or self._wait
        client: Any = distributed.global_state.client
        client.key_value_set(f"{place}/{self.index}", json.dumps(value))
        if not self.is_main:
            self._wait_for(f"{place}/0", 0, wait)
            # The main process has arrived, so it will answer after waiting for others. If it dies, JAX raises an error.
            result = json.loads(self._wait_for(f"{place}/all", 0, math.inf))
            if isinstance(result, str):
                raise UserError(result)
            return result
        try:
            values = [json.loads(self._wait_for(f"{place}/{process}", process, wait)) for process in range(self.count)]
        except UserError as error:
            client.key_value_set(f"{place}/all", json.dumps(str(error)))
            raise
        client.key_value_set(f"{place}/all", json.dumps(values))
        # All processes have arrived, so no process still reads the earlier agreement.
        if self._to_delete is not None:
            client.key_value_delete(self._to_delete)
        self._to_delete = place
        return values

    def broadcast(self, value: T, *, wait_seconds: float | None = None) -> T:
        """Return the main process's value in every process."""
        return self.all_gather(value, wait_seconds=wait_seconds)[0]

    def barrier(self, *, wait_seconds: float | None = None) -> None:
        """Wait until every process has arrived."""
        self.all_gather(None, wait_seconds=wait_seconds)

    def run_or_abort(self, work: Callable[[], T], *, wait_seconds: float | None = None) -> T:
        """Run ``work`` in every process; if it fails in one process, end all of them.

        A group of one re-raises exceptions of ``work`` other than ``UserError``.

        Raises:
          CoordinatedError: the error of a process, in the main process.
          SystemExit: in the other processes, which print only tracebacks of moejax's bugs.
        """
        problem, result = None, None
        try:
            result = work()
        except UserError as error:
            problem = str(error)
        # A process that lost the others can no longer communicate.
        except JaxRuntimeError:
            raise
        except Exception as error:
            if self.count == 1:
                raise
            if isinstance(error, OSError):
                problem = f"a file cannot be used ({error.filename}: {says('the system', error)})"
            else:
                traceback.print_exception(error)
                problem = f"a bug in moejax occurred ({says('Python', error)})"
        problems = self.all_gather(problem, wait_seconds=wait_seconds)
        failed = [number for number, text in enumerate(problems) if text is not None]
        if failed:
            text = str(problems[failed[0]])
            self.abort(text if len(failed) == self.count else f"Process {failed[0]} of {self.count}: {text}")
        return result  # type: ignore[return-value]

    def run_on_main(self, work: Callable[[], T], *, wait_seconds: float | None = None) -> T:
        """Run ``work`` only in the main process, and return its result, which is plain data, in every process.

        Raises: the same exceptions as ``run_or_abort``.
        """
        return self.broadcast(self.run_or_abort(lambda: work() if self.is_main else None, wait_seconds=wait_seconds))  # type: ignore[return-value]

    def abort(self, text: str) -> NoReturn:
        """End a training run for a reason known to all processes.

        Raises:
          CoordinatedError: with ``text``, in the main process.
          SystemExit: in the other processes, which print nothing.
        """
        raise CoordinatedError(text) if self.is_main else SystemExit(2)

    def check_same(self, what: str, value: Any) -> None:
        """Abort if the processes were given different values, and name the differences."""
        values = self.all_gather(value)
        for number, other in enumerate(values):
            different = [f"{path} is {a!r} and {b!r}" for path, (a, b) in changes(values[0], other).items()]
            if different:
                self.abort(
                    f"Processes 0 and {number} were given different {what}: {'; '.join(different[:5])}. Start all "
                    "processes with the same values."
                )

    @contextlib.contextmanager
    def leaving_together(self) -> Iterator[None]:
        """Wait for every process when leaving the context. If one stays ``HEARTBEAT_SECONDS`` longer than the others,
        JAX ends all of them.
        """
        try:
            yield
        except (CoordinatedError, SystemExit):
            self.barrier()
            raise
        # A process may still hash its part of the last checkpoint.
        self.barrier(wait_seconds=HASHING_SECONDS)

    def _begin(self) -> str:
        return f"moejax/{next(_agreements)}"

    def _wait_for(self, key: str, process: int, wait: float) -> str:
        client: Any = distributed.global_state.client
        waited = 0.0
        while True:
            part = min(wait - waited, WAIT_SECONDS)
            try:
                return client.blocking_key_value_get(key, int(1000 * part))
            except JaxRuntimeError as error:
                if "DEADLINE" not in str(error):
                    # The coordination service is lost.
                    raise
                waited += part
                if waited >= wait:
                    raise UserError(
                        f"Process {self.index} of {self.count} has waited {wait:.0f} s for process {process}; see "
                        "that process's messages. The same command resumes from the newest checkpoint."
                    ) from error


@contextlib.contextmanager
def init_distributed(
    coordinator: str | None, processes: int | None, process: int | None, *, wait_seconds: float = WAIT_SECONDS
) -> Iterator[None]:
    """Join ``jax.distributed`` inside the context. Arguments that are None are read from the environment of Slurm, Open
    MPI, Kubernetes or Cloud TPU.

    Raises:
      UserError: the coordinator is unknown, its port is in use, other processes do not arrive, or the environment is
        incomplete.
    """
    if coordinator is not None:
        port = coordinator.rpartition(":")[2]
        if not port.isdecimal():
            raise UserError(f"--coordinator is {coordinator}; give HOST:PORT, such as 10.0.0.1:8476.")
        if process == 0:
            _check_port(int(port))
    met = f"Not all {'' if processes is None else f'{processes} '}processes met at {coordinator or 'the coordinator'}"
    try:
        with _time_limit(
            wait_seconds,
            f"{met} within {wait_seconds:.0f} s. Check that all processes are started with the same --coordinator "
            "and --processes, that each has its own --process, and that they can reach the coordinator.",
        ):
            jax.distributed.initialize(
                coordinator_address=coordinator,
                num_processes=processes,
                process_id=process,
                initialization_timeout=int(wait_seconds) + _LONGER_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except JaxRuntimeError as error:
        raise UserError(
            f"{met} ({says('JAX', error)}). If the coordinator's port is in use, give all processes another port with "
            f"--coordinator HOST:PORT."
        ) from error
    except (ValueError, TypeError) as error:
        raise UserError(
            f"The other processes cannot be determined ({says('JAX', error)}). Give --coordinator HOST:PORT, "
            "--processes N "
            f"and --process I, or start the processes with Slurm, Open MPI, Kubernetes or on Cloud TPU."
        ) from error
    if coordinator is None and jax.default_backend() == "gpu":
        warn_of_idle_gpus(jax.process_count(), jax.local_device_count(), os.environ)
    yield
    jax.distributed.shutdown()


def warn_of_idle_gpus(processes: int, devices: int, environment: Mapping[str, str]) -> None:
    """Warn if the processes of a Slurm step leave GPUs of their node idle. Under Slurm, JAX gives each process one GPU.

    Args:
      processes: number of processes that JAX joined.
      devices: number of GPUs of this process.
    """
    names = ("SLURM_GPUS_ON_NODE", "SLURM_NTASKS", "SLURM_STEP_NUM_NODES")
    gpus, tasks, nodes = (int(value) if (value := environment.get(name, "")).isdecimal() else 0 for name in names)
    # Under another launcher than srun, or with different numbers of tasks per node, this node's number is unknown.
    if not (gpus and tasks and nodes) or tasks % nodes or processes != tasks:
        return
    used = tasks // nodes * devices
    if used < gpus:
        say(
            f"! This node has {gpus} GPUs, but its {counted(tasks // nodes, 'task')} will use {used}. To use all, "
            f"start one process per GPU with srun --ntasks-per-node={gpus}."
        )


def _check_port(port: int) -> None:
    """Raise ``UserError`` if the coordinator cannot listen on a port, which would crash JAX 0.10 with a segmentation
    fault.
    """
    with socket.socket() as probe:
        # SO_REUSEADDR allows a port that was released recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"Port {port} of this machine cannot be used ({says('the system', error)}). Give all processes "
                f"another port with --coordinator HOST:PORT."
            ) from error


@contextlib.contextmanager
def _time_limit(seconds: float, text: str) -> Iterator[None]:
    """End the process with a message if the block takes longer than ``seconds``; JAX would end it with a stack
    trace.
    """

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


def run_here(words: Sequence[str], processes: int) -> int:
    """Run ``moejax train WORDS`` in ``processes`` processes, forward signals to all of them, and return the exit
    status.
    """
    coordinator = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "moejax", "train", *words, "--processes", str(processes)]
    command += ["--coordinator", coordinator, "--parent", str(os.getpid()), "--process"]
    started = [subprocess.Popen([*command, str(number)], start_new_session=True) for number in range(processes)]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(started)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(started: list[subprocess.Popen[bytes]]) -> int:
    deadline = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        if any(process.poll() for process in started):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    codes = [process.poll() for process in started]
    killed = [(number, -code) for number, code in enumerate(codes) if code is not None and code < 0]
    said = [code for code in codes if code is not None and code > 0]
    if said:
        return said[0]
    if killed:
        number, by = killed[0]
        say(
            f"moejax: process {number} of {len(started)} was killed by {signal.Signals(by).name}; the same "
            f"command resumes from the newest checkpoint."
        )
        return AGAIN
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Redirect libraries' output from stdout to stderr, such as Gloo's messages at each connection."""
    sys.stdout.flush()
    before, where = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    try:
        with open(where, "w", encoding="utf-8", closefd=False) as sys.stdout:
            yield
    finally:
        sys.stdout = before
        os.dup2(where, 1)
        os.close(where)


@contextlib.contextmanager
def ending_alone(group: ProcessGroup) -> Iterator[None]:
    """End this process at once if it fails alone, because waiting for the other processes would block."""
    try:
        yield
    except CoordinatedError:
        raise
    except Exception as error:
        if group.count == 1:
            raise
        who = f"process {group.index} of {group.count}"
        if isinstance(error, JaxRuntimeError):
            lost = f"{who} has lost the other processes ({says('JAX', error)})"
            say(f"moejax: {lost}. The same command resumes from the newest checkpoint.")
            status = AGAIN
        elif isinstance(error, UserError):
            say(f"moejax: {who}: {told(error)}")
            status = 2
        else:
            traceback.print_exception(error)
            say(f"moejax: {who}: {OURS}")
            status = 1
        sys.stderr.flush()
        os._exit(status)
