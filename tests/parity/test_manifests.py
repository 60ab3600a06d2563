"""Manifests held to what their engines accept: Kubernetes' and JobSet's schemas, and SkyPilot's own parser."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jobset_schema import JOBSET

from moejax.__main__ import main

ENGINES = Path(sys.prefix) / "engines" / "bin" / "python"
STUDIES = Path(__file__).parents[2] / "configs" / "studies"
# The paper's batch of 2,430 sequences divides into no slice.
PILOT = ["--config", STUDIES / "chapter_002.py:pilot", "--config.recipe.batch_tokens=8388608"]
PILOT += ["--config.recipe.mesh.expert=8", "--config.recipe.runtime.remat=full"]
SHARDED = ["--config.recipe.mesh.fsdp=-1", "--config.recipe.mesh.data=1"]

pytestmark = pytest.mark.skipif(not ENGINES.exists(), reason="SkyPilot and kubernetes-validate: make parity")

KUBERNETES = """
import json, sys, jsonschema, kubernetes_validate
given = json.load(sys.stdin)
for jobset in given["jobsets"]:
    jsonschema.validate(jobset, given["schema"])
    for job in jobset["spec"]["replicatedJobs"]:
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        kubernetes_validate.validate(whole, "1.37", strict=True)
"""
SKY = """
import json, sys, sky
for given in json.load(sys.stdin):
    task = sky.Task.from_yaml_config(given)
    (resources,) = task.resources
    read = {"nodes": task.num_nodes, "accelerators": resources.accelerators, "spot": resources.use_spot}
    print(json.dumps(read | {"secrets": [one.name for one in task.managed_secret_refs]}))
"""


def run(program, given, folder):
    """Have the engines' own code read something, without a network or a home."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    return subprocess.run(
        [ENGINES, "-c", program], input=json.dumps(given), capture_output=True, text=True, env=environment, check=False
    )


def printed(capsys, *words):
    assert main(["launch", *map(str, words), "--config.recipe.data.source=gs://bucket/corpus"]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


GKE = {
    "one slice for all": ["--config", STUDIES / "zhao.py:G", *SHARDED, "--topology", "v5p:4x4x4"],
    "the smallest that holds each": ["--config", STUDIES / "zhao.py:G", *SHARDED, "--chip", "v6e", "--spot"],
    "a pod": [*PILOT, *SHARDED, "--chip", "v5p", "--queue", "tpus"],
    "one chip": ["--config", STUDIES / "zhao.py:tiny", "--chip", "v5e", "--service-account", "trainer"],
    "secrets": ["--config", STUDIES / "zhao.py:tiny", "--chip", "v5e", "--secret", "WANDB_API_KEY"],
}


@pytest.mark.parametrize("words", GKE.values(), ids=GKE)
def test_every_jobset_is_valid_against_its_schema_and_kubernetes(words, capsys, tmp_path):
    jobsets = printed(capsys, "gke", *words, "--out", "gs://bucket/study", "--image", "registry/moejax:tpu")
    assert jobsets
    valid = run(KUBERNETES, {"schema": JOBSET, "jobsets": jobsets}, tmp_path)
    assert valid.returncode == 0, valid.stderr[-2000:]


def test_what_is_wrong_in_a_jobset_is_found(capsys, tmp_path):
    (good, *_) = printed(capsys, "gke", *GKE["a pod"], "--out", "gs://bucket/study", "--image", "registry/moejax:tpu")
    for path, wrong in (
        (("spec", "failurePolicy", "rules", 0, "action"), "Retry"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "restart"), "Never"),
        (("spec", "replicatedJobs", 0, "template", "spec", "parallelism"), "two"),
        (
            ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0, "env", 0),
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "moejax"}}},
        ),
    ):
        bad = json.loads(json.dumps(good))
        place = bad
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = wrong
        assert run(KUBERNETES, {"schema": JOBSET, "jobsets": [bad]}, tmp_path).returncode != 0, path


SKIES = {
    "GPUs": (["--config", STUDIES / "zhao.py:G", *SHARDED, "--chip", "h100"], "H100"),
    "several machines": ([*PILOT, *SHARDED, "--chip", "h200"], "H200"),
    "a slice": (["--config", STUDIES / "zhao.py:tiny", "--topology", "v5p:2x2x1"], "tpu-v5p-8"),
    "secrets": (["--config", STUDIES / "zhao.py:tiny", "--chip", "h100", "--secret", "HF_TOKEN"], "H100"),
}


@pytest.mark.parametrize(("words", "accelerator"), SKIES.values(), ids=SKIES)
def test_skypilot_reads_every_task_file_as_it_is_meant(words, accelerator, capsys, tmp_path):
    files = printed(capsys, "sky", *words, "--out", "gs://bucket/study")
    found = run(SKY, files, tmp_path)
    assert found.returncode == 0, found.stderr[-2000:]
    tasks = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]
    for task, one in zip(tasks, files, strict=True):
        assert task["accelerators"] == one["resources"]["accelerators"]
        assert list(task["accelerators"]) == [accelerator]
        assert (task["nodes"], task["spot"]) == (one["num_nodes"], True)
        assert task["secrets"] == list(one.get("secrets", {}))
