"""Train in a Slurm job, and save when Slurm warns about the time limit.

This module has few imports, because submitit imports it in every process of a job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

AGAIN = 75
"""Exit status of ``moejax train`` after an interruption with a saved state."""

RESTARTS = 20
"""Maximum number of restarts of a job whose training command ends with ``AGAIN`` without a signal."""

WARNING = signal.SIGUSR2
"""Signal that Slurm sends, on submitit's request, some time before the time limit."""


@dataclass(frozen=True)
class Train:
    """One process of a training run, called by submitit. It runs ``moejax train`` as a child process.

    Four events may stop the child. Before the time limit, Slurm sends ``WARNING``: the child saves, and the job
    requeues itself. If the child ends with ``AGAIN`` without a signal, for example because a device hangs, the job
    requeues itself unless it was restarted ``RESTARTS`` times. When Slurm preempts or requeues the job, Slurm sends
    SIGTERM: the child saves, and Slurm queues the job again. Cancellation also sends SIGTERM, but without requeueing;
    the next launch resumes the training run.
    """

    words: tuple[str, ...]
    """Arguments after ``python -m moejax``."""

    def __call__(self) -> None:
        """Run ``moejax train`` and wait until it ends.

        Raises:
          SystemExit: the training run failed or was interrupted; the exit status is that of ``moejax train``.
        """
        warned = terminated = False
        # Every process of the job receives the warning, but ``moejax train`` handles only SIGTERM.
        signal.signal(WARNING, signal.SIG_IGN)

        def note(number: int, frame: object) -> None:
            nonlocal terminated
            terminated = True

        # Slurm sends SIGTERM to this process and to its child.
        signal.signal(signal.SIGTERM, note)
        training = subprocess.Popen([sys.executable, "-m", "moejax", *self.words])

        def warn(number: int, frame: object) -> None:
            nonlocal warned
            warned = True
            training.send_signal(signal.SIGTERM)

        signal.signal(WARNING, warn)
        status = training.wait()
        by_itself = not terminated and int(os.environ.get("SLURM_RESTART_COUNT", "0")) < RESTARTS
        if status == AGAIN and (warned or by_itself) and os.environ.get("SLURM_PROCID", "0") == "0":
            subprocess.run(["scontrol", "requeue", job_id()], check=True, timeout=60)
        if status:
            raise SystemExit(status if status > 0 else 128 - status)


def job_id() -> str:
    """Return the id of this job: ``12``, or ``12_3`` in an array."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
