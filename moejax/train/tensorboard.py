"""The log as TensorBoard's events: a run for the trunk and each branch, over the steps of the optimiser."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moejax.train.loggers import Line, scalars


class TensorBoardLogger:
    """Writes events by tensorboardX, without its queue, which may lose the last ones when it is closed.

    Events cannot be taken back, so a run that goes on is written anew from the lines that its log keeps: no point is
    there twice, and none is missing that a killed process had not written yet.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._records: Any = None

    def begin(self, run: str, kept: Sequence[Line]) -> None:
        """Remove the run's events and write those of ``kept``."""
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore[attr-defined]

        self.close()
        place = self._folder / run
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        now = time.time()
        self._records = RecordWriter(str(place / f"events.out.tfevents.{now:.0f}.{socket.gethostname()}"))
        self._add(file_version="brain.Event:2")
        # A TensorBoard that is running forgets by this what it has read before.
        self._add(session_log=SessionLog(status=SessionLog.START), step=0)
        for line in kept:
            self.write(line)

    def write(self, line: Line) -> None:
        """One event, with all scalars of the line."""
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(line).items()]
        self._add(summary=Summary(value=values), step=line["step"])
        self._records.flush()

    def close(self) -> None:
        """Close the file, if anything was begun."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _add(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
