"""Run a study's training runs on TPU slices of Google Kubernetes Engine, with one JobSet each.

A JobSet restarts as a whole whenever one of its machines is lost or preempted, and the training run resumes from its
latest checkpoint. A user mistake (exit status 2) or a bug in moejax (exit status 1) ends the JobSet at once.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.plan.topology import parse
from moejax.stored import foreign_json
from moejax.study.cloud import (
    GKE_ACCELERATORS,
    CloudEngine,
    as_yaml,
    chips_per_host,
    run,
    xla_environment,
)
from moejax.study.executor import EngineOptions, Task

RESTARTS = 100
GRACE_SECONDS = 120
"""Seconds between the termination signal and the end of a machine; spot machines give less."""
_MISTAKES = [1, 2]
SECRET = "moejax"
"""Kubernetes Secret with the values of ``GkeOptions.secret``."""
_CONTAINER = "train"


@dataclass(frozen=True, kw_only=True)
class GkeOptions(EngineOptions):
    """Settings of JobSets on Google Kubernetes Engine."""

    topology: str | None
    volume: str | None
    namespace: str
    service_account: str | None
    queue: str | None
    """Name of Kueue's local queue; None without Kueue."""
    spot: bool
    image: str
    """Container image with moejax and JAX for TPUs."""
    secret: Sequence[str]
    """Names of environment variables; manifests do not contain their values."""


@dataclass(frozen=True, kw_only=True)
class GkeEngine(CloudEngine):
    """Engine that uses TPU slices of the cluster in the current ``kubectl`` context."""

    options: GkeOptions

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the manifests as one YAML file."""
        return as_yaml([self.manifest(task) for task in tasks])

    def check(self) -> None:
        """Raise ``UserError`` if kubectl is not installed."""
        if shutil.which("kubectl") is None:
            gcloud = "" if shutil.which("gcloud") else " (nor is gcloud, which can install it)"
            raise UserError(
                f"kubectl is not installed on this machine{gcloud}. Install the Google Cloud SDK, then run `gcloud "
                "components install kubectl` and `gcloud container clusters get-credentials CLUSTER`, or run this "
                "command on a machine with kubectl."
            )

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Apply the manifests, and return the JobSets' names, keyed by model. A running JobSet stays unchanged; an
        ended JobSet is deleted and replaced.

        Raises:
          UserError: the cluster cannot be reached, or refuses the manifests.
        """
        self.check()
        names = {self.name(task) for task in tasks}
        known = self._jobsets()
        ended = [one["metadata"]["name"] for one in known if one.get("status", {}).get("terminalState")]
        if old := sorted(names.intersection(ended)):
            _kubectl("delete", "jobsets", f"--namespace={self.options.namespace}", *old)
        _kubectl("apply", "--filename=-", given=self.describe(tasks))
        return {task.name: self.name(task) for task in tasks}

    def _jobsets(self) -> list[Any]:
        said = _kubectl("get", "jobsets", f"--namespace={self.options.namespace}", "--output=json")
        return foreign_json(said, "The output of kubectl about JobSets", shape={"items": list}, remedy="try it again")[
            "items"
        ]

    def manifest(self, task: Task) -> dict[str, Any]:
        """Return the manifest of a training run's JobSet, keyed by field."""
        metadata: dict[str, Any] = {
            "name": self.name(task),
            "namespace": self.options.namespace,
            "labels": {"app": "moejax", "moejax-study": self.study_label(task)},
            # A node pool is a slice, and two training runs never share one.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        }
        if self.options.queue:
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = self.options.queue
        return {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": metadata,
            "spec": {
                "failurePolicy": {
                    "maxRestarts": RESTARTS,
                    "rules": [
                        {"name": "mistakes", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
                    ],
                },
                "replicatedJobs": [
                    {
                        "name": "slice",
                        # GKE sets the slice number and the number of slices (MEGASCALE_*) on the machines of each
                        # replica.
                        "replicas": parse(task.resources.topology).slices,
                        "template": {"spec": self._job(task)},
                    }
                ],
            },
        }

    def _job(self, task: Task) -> dict[str, Any]:
        hosts = task.resources.nodes // parse(task.resources.topology).slices
        mistakes = {"containerName": _CONTAINER, "operator": "In", "values": _MISTAKES}
        return {
            "parallelism": hosts,
            "completions": hosts,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": mistakes}]},
            "template": {
                "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"} if self.mount.bucket else {}},
                "spec": self._pod(task),
            },
        }

    def _pod(self, task: Task) -> dict[str, Any]:
        topology = parse(task.resources.topology)
        tpus = {"google.com/tpu": chips_per_host(topology)}
        variables = {"JAX_PLATFORMS": "tpu,cpu"} | xla_environment(task.training, topology)
        secrets = [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": name}}} for name in self.options.secret
        ]
        account = {"serviceAccountName": self.options.service_account} if self.options.service_account else {}
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            **account,
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": GKE_ACCELERATORS[topology.chip_name],
                "cloud.google.com/gke-tpu-topology": "x".join(map(str, topology.shape)),
                **({"cloud.google.com/gke-spot": "true"} if self.options.spot else {}),
            },
            "containers": [
                {
                    "name": _CONTAINER,
                    "image": self.options.image,
                    # Kubernetes replaces $(NAME) by a variable's value, and $$ by $.
                    "command": [word.replace("$", "$$") for word in ("python", "-m", "moejax", *task.words)],
                    "env": [{"name": name, "value": value} for name, value in variables.items()] + secrets,
                    # Ports of libtpu and of the coordinator of jax.distributed.
                    "ports": [{"containerPort": 8471}, {"containerPort": 8476}],
                    "resources": {"requests": tpus, "limits": tpus},
                    "volumeMounts": [{"name": "study", "mountPath": str(self.mount.path)}],
                }
            ],
            "volumes": [{"name": "study", **self._volume()}],
        }

    def _volume(self) -> dict[str, Any]:
        if self.mount.bucket is None:
            return {"persistentVolumeClaim": {"claimName": self.mount.source}}
        attributes = {"bucketName": self.mount.bucket, "mountOptions": "implicit-dirs"}
        return {"csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}}


def _kubectl(*words: str, given: str = "") -> str:
    return run(["kubectl", *words], f"The cluster refused kubectl {words[0]}", given)


def check_name(option: str, name: str | None) -> None:
    """Raise ``UserError`` if an option's value is not a valid Kubernetes name."""
    if name is not None and not re.fullmatch(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        raise UserError(
            f"{option} is {name!r}, which is not a valid name in Kubernetes; give at most 63 lower-case letters, "
            f"digits, '-' and '.', with a letter or digit at both ends."
        )
