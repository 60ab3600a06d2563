"""Run a study's training runs as managed jobs of SkyPilot, with one task file each. SkyPilot replaces lost machines."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.plan.topology import parse
from moejax.study.cloud import CloudEngine, as_yaml, cloud_tpu_type, run, xla_environment
from moejax.study.executor import EngineOptions, Task
from moejax.study.slurm_job import AGAIN

RESTARTS = 3
"""Maximum number of restarts after failures of the job. Restarts after lost machines are unlimited."""
PORT = 8476


@dataclass(frozen=True, kw_only=True)
class SkyOptions(EngineOptions):
    """Settings of SkyPilot's managed jobs."""

    chips_per_node: int
    nodes: int | None
    topology: str | None
    infra: str | None
    on_demand: bool
    image: str | None
    """``docker:NAME`` of an image with moejax. None installs moejax from the current folder."""
    secret: Sequence[str]
    """Names of environment variables; task files do not contain their values."""


@dataclass(frozen=True, kw_only=True)
class SkyEngine(CloudEngine):
    """Managed jobs of SkyPilot."""

    accelerator: str
    """SkyPilot's name for the GPU; TPUs are named by their topology."""
    options: SkyOptions

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the task files, each after the command that submits it."""
        files = [as_yaml([self.task_file(task)]) for task in tasks]
        heads = [f"# {shlex.join(self._command(task, f'{self.name(task)}.yaml'))}" for task in tasks]
        return "---\n".join(f"{head}\n{file}" for head, file in zip(heads, files, strict=True))

    def check_installable(self) -> None:
        """Raise ``UserError`` if the machines could not install moejax."""
        if not (self.options.image or is_checkout(Path())):
            raise UserError(
                f"Without --image, every machine installs moejax from the current folder, but {Path().absolute()} is "
                "not a checkout of moejax. Run the command in a checkout, or name an image that has moejax with "
                "--image docker:NAME (launch/gpu.Dockerfile and launch/tpu.Dockerfile in the repository build such "
                "images)."
            )

    def check(self) -> None:
        """Raise ``UserError`` if SkyPilot is not installed on this machine."""
        if shutil.which("sky") is None:
            raise UserError(
                "SkyPilot (sky) is not installed on this machine. Install it in a separate environment and run sky "
                "check, or run this command on a machine with SkyPilot."
            )

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Launch a managed job for each task, and return the jobs' names, keyed by model.

        Raises:
          UserError: SkyPilot or moejax is not available, or SkyPilot refuses.
        """
        self.check()
        for task in tasks:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, f"{self.name(task)}.yaml")
                path.write_text(as_yaml([self.task_file(task)]), encoding="utf-8")
                command = [*self._command(task, str(path)), "--yes", "--detach-run"]
                run(command, f"SkyPilot refused {task.name}")
        return {task.name: self.name(task) for task in tasks}

    def task_file(self, task: Task) -> dict[str, Any]:
        """Return SkyPilot's task file of a training run, keyed by field."""
        resources: dict[str, Any] = {"accelerators": self._accelerators(task)}
        if self.options.infra:
            resources["infra"] = self.options.infra
        if self.options.image:
            resources["image_id"] = self.options.image
        resources["use_spot"] = not self.options.on_demand
        resources["job_recovery"] = {"max_restarts_on_errors": RESTARTS, "recover_on_exit_codes": [AGAIN]}
        slice_ = task.resources.topology
        variables = xla_environment(task.training, parse(slice_)) if slice_ else {}
        extra = "tpu" if slice_ else "cuda13"
        install = {} if self.options.image else {"workdir": ".", "setup": f"python -m pip install '.[{extra}]'\n"}
        return {
            "name": self.name(task),
            "resources": resources,
            # SkyPilot calls all machines of a TPU slice one node.
            "num_nodes": 1 if slice_ else task.resources.nodes,
            **({"envs": variables} if variables else {}),
            # SkyPilot reads the values from the environment of the submitting command.
            **({"secrets": dict.fromkeys(self.options.secret)} if self.options.secret else {}),
            "file_mounts": {str(self.mount.path): {"source": self.mount.source, "mode": "MOUNT"}},
            **install,
            "run": self._run(task),
        }

    def _accelerators(self, task: Task) -> dict[str, int]:
        if task.resources.topology:
            return {f"tpu-{cloud_tpu_type(parse(task.resources.topology))}": 1}
        return {self.accelerator: task.resources.chips // task.resources.nodes}

    def _run(self, task: Task) -> str:
        words = ["python", "-m", "moejax", *task.words]
        if task.resources.topology or task.resources.processes == 1:
            return f"{shlex.join(words)}\n"
        words.remove("--distributed")
        return (
            f'first=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
            f"{shlex.join(words)} \\\n"
            f'  --coordinator "$first:{PORT}" --processes "$SKYPILOT_NUM_NODES" --process "$SKYPILOT_NODE_RANK"\n'
        )

    def _command(self, task: Task, path: str) -> list[str]:
        secrets = [word for name in self.options.secret for word in ("--secret", name)]
        return ["sky", "jobs", "launch", "--name", self.name(task), *secrets, path]


def is_checkout(folder: Path) -> bool:
    """Return whether pip can install moejax from a folder."""
    try:
        described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return described.get("project", {}).get("name") == "moejax"
