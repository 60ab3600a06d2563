"""Run a study's training runs as Slurm jobs through submitit, with one job array per resource request. Preempted jobs
are requeued.
"""

from __future__ import annotations

import itertools
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from moejax.errors import UserError
from moejax.storage import open_storage
from moejax.study.estimate import MOST_MINUTES, ResourceRequest
from moejax.study.executor import Ended, EngineOptions, Task
from moejax.study.slurm_job import Train
from moejax.study.status import launched, run_statuses, write_launch
from moejax.wording import counted, install_command, says

FOLDER = "slurm"
"""Folder in a study's folder for logs and submitit's files."""

LOG_LEVEL = "SUBMITIT_LOG_LEVEL"
SECONDS_BETWEEN_QUERIES = 2.0


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(EngineOptions):
    """Settings of Slurm's jobs."""

    chips_per_node: int
    nodes: int | None
    cores: int | None
    memory: int | None
    minutes: int | None
    grace: int
    """Seconds between the signal to save and a job's time limit."""
    at_a_time: int
    """Maximum number of jobs of an array that run at the same time."""
    set: Sequence[str]
    setup: Sequence[str]
    """Lines of bash that run before Python in every process of a job."""


@dataclass(kw_only=True)
class SlurmExecutor:
    """Engine that runs jobs on this machine's Slurm cluster. All nodes must see the study's folder."""

    study_name: str
    """Name of the jobs; a job of one training run also has the training run's name."""
    options: SlurmOptions
    settings: Mapping[str, str]
    """Further options of ``sbatch``, such as ``partition``."""
    _ids: dict[str, str] = field(default_factory=dict)
    _left: dict[str, Task] = field(default_factory=dict)
    _asked: float = 0.0
    _missed: set[str] = field(default_factory=set)

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the scripts for ``sbatch``, one per resource request."""
        _submitit()
        # submitit has no public function that returns a script on a machine without Slurm.
        from submitit.slurm.slurm import _make_sbatch_string

        scripts = []
        for task in tasks:
            _check_name(task.study)
        for resources, group in _groups(tasks):
            commands = [f"#   {number}: {shlex.join(['moejax', *task.words])}" for number, task in enumerate(group)]
            folder = str(group[0].study / FOLDER / "%j")
            script = _make_sbatch_string(
                command=f"{self._python()} -u -m submitit.core._submit {shlex.quote(folder)}",
                folder=folder,
                map_count=len(group) if len(group) > 1 else None,
                **self._parameters(resources, group),
            )
            scripts.append("\n".join([script.rstrip(), "", "# Commands, by index in the array:", *commands]))
        return "\n\n".join(scripts)

    def check_limits(self, tasks: Sequence[Task]) -> None:
        """Raise ``UserError`` if a job would get the signal to save before its first step."""
        for task in tasks:
            minutes = task.resources.minutes or MOST_MINUTES
            # Slurm checks limits once a minute.
            if 60 * (minutes - 1) <= self.options.grace:
                raise UserError(
                    f"{task.name} has a limit of {counted(minutes, 'minute')}, but the signal to save comes "
                    f"{self.options.grace} seconds before the limit, which leaves no time to train. Increase "
                    "--minutes, or lower --grace."
                )

    def check(self) -> None:
        """Raise ``UserError`` if Slurm or submitit is not on this machine."""
        _submitit()
        queued()

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Queue all tasks that are not in the queue already, and return the job ids, keyed by model.

        Raises:
          UserError: Slurm or submitit is not on this machine, or Slurm refuses.
        """
        submitit = _submitit()
        study = Path(tasks[0].study).absolute() if tasks else Path()
        _check_name(study)
        queue = queued()
        before = {name: job for name, job in launched(study, "slurm").items() if job in queue} if tasks else {}
        for resources, group in _groups([task for task in tasks if task.name not in before]):
            executor = submitit.SlurmExecutor(folder=study / FOLDER / "%j", python=self._python())
            executor.update_parameters(**self._parameters(resources, group))
            try:
                with executor.batch():
                    jobs = [executor.submit(Train(tuple(task.words))) for task in group]
            except submitit.core.utils.FailedJobError as error:
                raise UserError(
                    f"Slurm refused the jobs ({says('Slurm', error, end=True)}). Correct the cause, and "
                    "run the command again."
                ) from error
            ids = {task.name: job.job_id for task, job in zip(group, jobs, strict=True)}
            write_launch(study, "slurm", ids)
            self._ids |= ids
        self._ids |= before
        self._left |= {task.name: task for task in tasks}
        return {task.name: self._ids[task.name] for task in tasks}

    def ended(self) -> list[Ended]:
        """Return the tasks that are done, or whose job left the queue before the training run was done."""
        if time.monotonic() - self._asked < SECONDS_BETWEEN_QUERIES or not self._left:
            return []
        queue = queued()
        self._asked = time.monotonic()
        gone = {name for name in self._left if self._ids[name] not in queue}
        # A job may be unlisted for a moment while its state changes, so it counts as gone only after two queries.
        missed, self._missed = gone & self._missed, gone
        finished = []
        for task in [self._left.pop(name) for name in missed]:
            storage = open_storage(task.study)
            (one,) = run_statuses(storage, [task.training])
            job = self._ids[task.name]
            why = f"{task.name} (Slurm job {job}): {one.why or 'its job was ended'} (see {log_file(task, job)})."
            finished.append(
                Ended(task=task, why="" if one.state == "done" else why, users_mistake=one.state == "failed")
            )
        return finished

    def stop(self) -> None:
        """Stop waiting; queued jobs stay in the queue."""

    def _python(self) -> str:
        """Return the shell command that starts Python after the lines of ``setup``."""
        if not self.options.setup:
            return shlex.quote(sys.executable)
        # A sourced script would read the shell's arguments, so save and clear them first.
        lines = ['moejax_command=("$@")', "set --", *self.options.setup, 'exec "${moejax_command[@]}"']
        return shlex.join(["bash", "-ec", "\n".join(lines), "bash", sys.executable])

    def _parameters(self, resources: ResourceRequest, tasks: Sequence[Task]) -> dict[str, Any]:
        per_node = resources.processes // resources.nodes
        optional: dict[str, Any] = {}
        if resources.chips:
            optional["gpus_per_node"] = resources.chips // resources.nodes
        if resources.memory_bytes:
            optional["mem"] = f"{math.ceil(resources.memory_bytes / 2**20)}M"
        return {
            "job_name": tasks[0].job_name(self.study_name) if len(tasks) == 1 else self.study_name,
            "nodes": resources.nodes,
            "ntasks_per_node": per_node,
            "cpus_per_task": resources.cores,
            "time": resources.minutes or MOST_MINUTES,
            "signal_delay_s": self.options.grace,
            "array_parallelism": self.options.at_a_time,
            # srun does not inherit the number of cores from sbatch.
            "srun_args": [f"--cpus-per-task={resources.cores}"],
            "setup": [f"export JAX_PLATFORMS={'cuda' if resources.chips else 'cpu'}"],
            "additional_parameters": {"requeue": True, **self.settings},
            **optional,
        }


def queued() -> dict[str, str]:
    """Return the states of this user's jobs in the queue, keyed by job id.

    Raises:
      UserError: Slurm is not installed, or does not respond.
    """
    # submitit requires srun on the submitting machine, although only the jobs call it.
    if not all(map(shutil.which, ("sbatch", "squeue", "srun"))):
        raise UserError(
            "This machine lacks some of Slurm's commands (sbatch, squeue, srun). Log in to a machine that has them, "
            "or omit --submit to show the scripts."
        )
    command = ["squeue", "--noheader", "--array", "--me", "--format=%i %T"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise UserError(f"Slurm does not respond ({asked.stderr.strip()}); try again later.")
    return dict(line.split(maxsplit=1) for line in asked.stdout.splitlines())


def log_file(task: Task, job: str) -> Path:
    """Return the log file of a job's first process."""
    return Path(task.study) / FOLDER / job.split("_")[0] / f"{job}_0_log.err"


def _groups(tasks: Sequence[Task]) -> list[tuple[ResourceRequest, list[Task]]]:
    """Return tasks grouped by resource request, in order, because an array has only one request."""
    kinds = list(dict.fromkeys(task.resources for task in tasks))
    together = sorted(tasks, key=lambda task: kinds.index(task.resources))
    return [(kind, list(group)) for kind, group in itertools.groupby(together, key=lambda task: task.resources)]


def _check_name(study: PurePath) -> None:
    # Slurm and submitit both replace patterns such as %j, so an escaped %% would not become a single %.
    if "%" in str(study):
        raise UserError(f"{study} contains %, which Slurm replaces in log names; choose another --out.")


def _submitit() -> ModuleType:
    # submitit would configure logging for the whole process and close the streams of other handlers. Jobs, which
    # inherit the environment, do log.
    chosen = LOG_LEVEL in os.environ
    os.environ.setdefault(LOG_LEVEL, "NOCONFIG")
    try:
        import submitit
    except ImportError as error:
        raise UserError(f"submitit is not installed. Run {install_command('slurm')}.") from error
    finally:
        if not chosen:
            del os.environ[LOG_LEVEL]
    return submitit
