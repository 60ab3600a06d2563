"""What a Slurm job runs: the command of one training, with Slurm's warning before the time limit turned into a save.

This module is light: submitit imports it in every process of a job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

AGAIN = 75
"""Exit status of ``moejax train`` when it was interrupted and is saved."""

WARNING = signal.SIGUSR2
"""What submitit asks Slurm to send some time before the limit."""


@dataclass(frozen=True)
class Train:
    """One process of a training, called by submitit.

    Three things may stop it. The time limit comes with ``WARNING``: the training saves, and the job puts itself back
    into the queue. Slurm preempts or requeues: it sends SIGTERM, upon which the training saves, and Slurm itself queues
    the job again. Someone cancels: the same SIGTERM, and nothing queues it again; the next launch goes on.
    """

    words: tuple[str, ...]
    """After ``python -m moejax``."""

    def __call__(self) -> None:
        """Train.

        Raises:
          SystemExit: the training did not end well; its status.
        """
        warned = False
        # The warning goes to every process of the job; the training knows SIGTERM alone.
        signal.signal(WARNING, signal.SIG_IGN)
        training = subprocess.Popen([sys.executable, "-m", "moejax", *self.words])

        def warn(number: int, frame: object) -> None:
            nonlocal warned
            warned = True
            training.send_signal(signal.SIGTERM)

        signal.signal(WARNING, warn)
        status = training.wait()
        if warned and status == AGAIN and os.environ.get("SLURM_PROCID", "0") == "0":
            subprocess.run(["scontrol", "requeue", job_id()], check=True, timeout=60)
        if status:
            raise SystemExit(status if status > 0 else 128 - status)


def job_id() -> str:
    """Number of this job: ``12``, or ``12_3`` in an array."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
