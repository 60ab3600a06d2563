"""One writer at a time to a training in an object store.

The lock is the file ``.locks/N`` with the highest N. Who wants it makes the next number, which the store grants to one
process alone (``If-None-Match`` of S3, ``ifGenerationMatch=0`` of Google's), and the holder rewrites its own file every
``BEAT_SECONDS``. A number is taken over when its holder has given it back, is known to be dead, since it was a process
of this machine, or has been silent for ``LEASE_SECONDS`` by the clock of who waits.

Nothing in a store makes a holder stop that was silent for longer than that and then goes on: it looks whether the
number is still its own before it writes files that belong together. Those that it was writing may lie there, but no
commit of a checkpoint and no row that would follow them. Nor is a store that ignores conditions (some that speak S3 do)
any guard against two processes that begin within the same second.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fsspec.implementations.dirfs import DirFileSystem

from moejax.errors import UserError
from moejax.storage import reaching, read_text
from moejax.stored import Damaged, parse_json, sealed
from moejax.wording import says

LOCKS = ".locks"

BEAT_SECONDS = 10.0

LEASE_SECONDS = 60.0
"""Silence after which a holder counts as dead."""

_LOOKING_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The holder of a lock number."""

    process: str
    """Drawn at random: tells one process from any other."""
    machine: str
    """Host, its start and its space of process ids: what a process id is looked up in."""
    pid: int
    began: str
    """When that process was started, by its machine: ids are used again."""
    beats: int = 0
    released: bool = False

    @property
    def is_here(self) -> bool:
        """True if the holder is a process of this machine."""
        return self.machine == this_machine()

    @property
    def is_gone(self) -> bool:
        """True if the holder has released the lock, or is known to be dead."""
        return self.released or (self.is_here and _began(self.pid) != self.began)


class TakenOver(UserError):
    """Another process has the lock now."""


class StoreLock:
    """The lock of a training's folder in a store."""

    def __init__(self, storage: DirFileSystem, url: str, log: Callable[[str], None] = lambda text: None):
        self._storage, self._url, self._log = storage, url, log
        self._me = Holder(
            process=uuid.uuid4().hex, machine=this_machine(), pid=os.getpid(), began=_began(os.getpid()) or ""
        )
        self.number = 0
        """Number of this process, from 1; 0 without the lock."""
        self.previous_process: str | None = None
        """Holder of the previous number; None if there is none."""

    @property
    def process(self) -> str:
        """This one, as the lock's file names it."""
        return self._me.process

    def acquire(self) -> int:
        """Take the lock, and return the number that was the last before.

        Raises:
          UserError: another process holds it, or the store cannot be written to.
        """
        with reaching(self._url):
            numbers = lock_numbers(self._storage)
            last = max(numbers, default=0)
            self._wait_for(last)
            before = read_holder(self._storage, last)
            self.previous_process = before.process if before else None
        problem = None
        try:
            self._write(last + 1, mode="create")
        # A store says in ways of its own that the file is there, and perhaps of a file that it has just taken from us.
        except Exception as error:
            problem = error
        with reaching(self._url):
            holder = read_holder(self._storage, last + 1)
            if holder is None and problem is not None:
                raise UserError(
                    f"{self._url} cannot be written to ({says('the store', problem)}); choose another --out, or mend "
                    f"that."
                ) from problem
            if holder is None or holder.process != self._me.process or max(lock_numbers(self._storage)) != last + 1:
                raise self._busy(holder)
            self.number = last + 1
            for number in numbers:
                # Who comes at the same time may have removed it.
                with contextlib.suppress(FileNotFoundError):
                    self._storage.rm_file(_path(number))
        return last

    def check(self) -> None:
        """Raise ``TakenOver`` if another process has the lock now."""
        if max(lock_numbers(self._storage), default=0) > self.number:
            raise TakenOver(
                f"{self._url} was taken over by another process, since this one was silent for {LEASE_SECONDS:.0f} s; "
                f"nothing more is written there."
            )

    def beat(self) -> None:
        """Show a sign of life.

        Raises:
          TakenOver: another process has the lock now.
        """
        self.check()
        self._me = replace(self._me, beats=self._me.beats + 1)
        self._write(self.number)

    def release(self) -> None:
        """Give the lock back."""
        self._me = replace(self._me, released=True)
        self._write(self.number)

    def withdraw(self) -> None:
        """Give it back and leave no file, where nothing was written by its leave: nobody asks then who had it last."""
        self.check()
        self._storage.rm_file(_path(self.number))

    def _wait_for(self, number: int) -> None:
        """Until the holder of a number counts as dead.

        Raises:
          UserError: it is alive.
        """
        holder = read_holder(self._storage, number)
        if holder is None or holder.is_gone:
            return
        if holder.is_here:
            raise self._busy(holder)
        self._log(
            f"{self._url} is held by process {holder.pid} of {holder.machine.split()[0]}; waiting for "
            f"{LEASE_SECONDS:.0f} s whether it is still at work."
        )
        deadline = time.monotonic() + LEASE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOOKING_SECONDS)
            now = read_holder(self._storage, number)
            if now is None or now.released:
                return
            if now != holder:
                raise self._busy(now)

    def _busy(self, holder: Holder | None) -> UserError:
        who = f" ({holder.pid} on {holder.machine.split()[0]})" if holder else ""
        return UserError(
            f"Another process{who} is writing to {self._url}; wait for it, stop it, or choose another --out."
        )

    def _write(self, number: int, mode: str = "overwrite") -> None:
        self._storage.pipe_file(_path(number), sealed(asdict(self._me)).encode(), mode=mode)


def lock_numbers(storage: DirFileSystem) -> list[int]:
    """The numbers that were given out and are not removed."""
    try:
        names = [str(path).rpartition("/")[2] for path in storage.ls(LOCKS, detail=False)]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def read_holder(storage: DirFileSystem, number: int) -> Holder | None:
    """Return the holder of a number; None if there is none, or its file cannot be read."""
    text = read_text(storage, _path(number))
    try:
        return None if text is None else parse_json(text, Holder, _path(number), remedy="")
    except Damaged:
        return None


def this_machine() -> str:
    """Host, its start and its space of process ids."""
    told = [socket.gethostname()]
    with contextlib.suppress(OSError):
        told.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        told.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(told)


def _began(pid: int) -> str | None:
    """When a process of this machine was started, as the system counts; None if it is no more."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return None if state == "Z" else rest[18]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


def _path(number: int) -> str:
    return f"{LOCKS}/{number}"
