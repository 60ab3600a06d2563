"""``moejax launch``: what is handed to each engine, and what is said where that cannot be."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from moejax.__main__ import main
from moejax.config import build, dump
from moejax.data.config import DataConfig
from moejax.data.prepare import prepare
from moejax.laws.chips import find
from moejax.plan.topology import parse
from moejax.storage import matching, open_storage
from moejax.stored import write_json
from moejax.study.analysis import warnings
from moejax.study.cloud import (
    GKE_ACCELERATORS,
    chips_per_host,
    cloud_tpu_type,
    holds_corpus,
    kubernetes_name,
    mounted,
    rentable,
)
from moejax.study.estimate import estimate
from moejax.study.status import launched

STUDIES = Path(__file__).parents[2] / "configs" / "studies"
TINY = f"--config={STUDIES / 'zhao.py:tiny'}"
# The paper's batch of 2,430 sequences divides into no slice.
PILOT = [f"--config={STUDIES / 'chapter_002.py:pilot'}", "--config.recipe.batch_tokens=8388608"]
PILOT += ["--config.recipe.data.source=web"]
PILOT += ["--config.recipe.mesh.fsdp=-1", "--config.recipe.mesh.data=1"]
PILOT += ["--config.recipe.mesh.expert=8", "--config.recipe.runtime.remat=full"]
IMAGE = ["--image", "registry/moejax:tpu"]


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """What the command prints; it writes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moejax.study.sky.is_checkout", lambda folder: True)

    def run(*words):
        assert main(["launch", *map(str, words)]) == 0
        assert not list(tmp_path.iterdir())
        return capsys.readouterr().out

    return run


def test_no_job_is_printed_that_has_no_corpus(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "slurm", TINY, "--chip", "h100", "--out", "/shared/x"]
    said = []
    for source, status in (("", 2), ("web/", 0)):
        assert main([*words, f"--config.recipe.data.source={source}"]) == status
        said.append("names no corpus; give one" in capsys.readouterr().err)
    assert said == [True, False]


def test_a_corpus_that_is_not_here_and_one_that_repeats_are_named(capsys, monkeypatch, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"Sentence {number} after another. " * 40)
    tokens = prepare(str(tmp_path / "texts"), tmp_path / "set").manifest.train.tokens
    monkeypatch.chdir(tmp_path)

    def said(source, budget):
        words = [ONE, f"--config.recipe.data.source={source}", f"--config.recipe.budgets_tokens={budget}"]
        assert main(["launch", "slurm", *words, "--chip", "h100", "--out", "/shared/x"]) == 0
        return capsys.readouterr().err

    assert "This machine does not have web, so the size of the data is unknown." in said("web", 65536)
    twice = said("set", 2 * 65536)
    assert "This machine does not have" not in twice
    epochs = 2 * 65536 / tokens
    assert f"The longest budget reads set {epochs:.3g} times ({tokens:,} different tokens)." in twice
    assert "add little" not in twice
    assert "add little" in said("set", 2**20)
    # The size of a text that is not prepared is unknown.
    unprepared = said("texts", 2**20)
    assert "This machine does not have" not in unprepared
    assert "The longest budget reads" not in unprepared


def test_slurm_gets_an_array_for_each_kind_of_resources(printed):
    script = printed("slurm", *PILOT, "--out", "/shared/pilot", "--set", "partition=gpu", "--grace", 300)
    assert "#SBATCH --gpus-per-node=8" in script
    assert "#SBATCH --ntasks-per-node=8" in script
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --job-name=chapter_002-pilot-" in script
    assert "#SBATCH --signal=USR2@300" in script
    assert "moejax train --out /shared/pilot/models/" in script
    assert script.count("--distributed") == 1
    many = printed("slurm", TINY, "--out", "/shared/tiny", "--chip", "cpu", "--cores", 4, "--at-a-time", 2)
    assert many.count("#SBATCH --array=") == 1
    assert "#SBATCH --job-name=zhao-tiny\n" in many
    assert "#SBATCH --job-name=tiny\n" in printed("slurm", ONE, "--out", "/shared/tiny", "--chip", "cpu")
    assert "%2" in many
    assert "#SBATCH --cpus-per-task=4" in many
    assert "--gpus-per-node" not in many


def test_what_would_be_handed_over_is_there_as_data(printed):
    tasks = json.loads(printed("slurm", TINY, "--out", "/shared/tiny", "--chip", "cpu", "--cores", 4, "--json"))
    first = tasks[0]
    assert first["command"][:4] == ["moejax", "train", "--out", f"/shared/tiny/models/{first['model']}"]
    assert {task["resources"]["cores"] for task in tasks} == {4}


def test_gke_gets_a_jobset_for_each_training_on_the_smallest_slice_that_holds_it(printed):
    (jobset,) = yaml.safe_load_all(printed("gke", *PILOT, "--chip", "v5p", "--out", "gs://b/pilot", *IMAGE, "--spot"))
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    topology = parse("v5p:" + pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"])
    assert job["parallelism"] == job["completions"] == topology.devices // 4
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    command = pod["containers"][0]["command"]
    assert command[command.index("--out") + 1].startswith("/b/pilot/models/")
    assert "--distributed" in command
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == "/b"
    assert pod["volumes"][0]["csi"]["volumeAttributes"]["bucketName"] == "b"


def test_a_volume_claim_takes_the_place_of_a_bucket(printed):
    words = ["--volume", "filestore:/shared", "--out", "/shared/tiny", "--topology", "v6e:1x1"]
    for jobset in yaml.safe_load_all(printed("gke", TINY, *words, *IMAGE)):
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        assert pod["volumes"] == [{"name": "study", "persistentVolumeClaim": {"claimName": "filestore"}}]
        assert "--distributed" not in pod["containers"][0]["command"]


def test_several_slices_are_replicas_of_one(printed):
    words = [*PILOT, "--topology", "2xv5p:4x8x8", "--out", "gs://b/x", *IMAGE]
    (jobset,) = yaml.safe_load_all(printed("gke", *words))
    (replicated,) = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["replicas"], job["parallelism"], job["completions"]) == (2, 64, 64)
    selector = job["template"]["spec"]["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-topology"] == "4x8x8"
    assert "--distributed" in job["template"]["spec"]["containers"][0]["command"]
    flags = "--xla_tpu_scoped_vmem_limit_kib=81920"
    environment = job["template"]["spec"]["containers"][0]["env"]
    assert any(one["name"] == "LIBTPU_INIT_ARGS" and flags in one["value"] for one in environment)


def test_skypilot_gets_a_task_file_for_each_training(printed):
    (task,) = yaml.safe_load_all(printed("sky", *PILOT, "--chip", "h200", "--out", "s3://b/pilot", "--infra", "aws"))
    assert task["resources"]["accelerators"] == {"H200": 8}
    assert task["num_nodes"] > 1
    assert '--process "$SKYPILOT_NODE_RANK"' in task["run"]
    assert task["file_mounts"] == {"/b": {"source": "s3://b", "mode": "MOUNT"}}
    tpus = yaml.safe_load_all(printed("sky", TINY, "--topology", "v5e:4x4", "--out", "gs://b/tiny"))
    for task in tpus:
        assert task["resources"]["accelerators"] == {"tpu-v5litepod-16": 1}
        assert "--distributed" in task["run"]
    for task in yaml.safe_load_all(printed("sky", TINY, "--topology", "v5p:2x2x1", "--out", "gs://b/tiny")):
        assert task["envs"]["LIBTPU_INIT_ARGS"].startswith("--xla_tpu_scoped_vmem_limit_kib=81920 --xla_")


ONE = f"--config={STUDIES.parent / 'tiny.py'}"
SECRETS = ["--secret", "WANDB_API_KEY", "--secret", "HF_TOKEN"]


def test_a_secret_reaches_the_processes_and_no_manifest(printed, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "of-nobody")
    manifest = printed("gke", ONE, "--topology", "v5e:1x1", "--out", "gs://b/one", *IMAGE, *SECRETS)
    (container,) = yaml.safe_load(manifest)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    named = {one["name"]: one["valueFrom"] for one in container["env"] if "valueFrom" in one}
    assert named == {name: {"secretKeyRef": {"name": "moejax", "key": name}} for name in ("WANDB_API_KEY", "HF_TOKEN")}
    file = printed("sky", ONE, "--chip", "h100", "--out", "gs://b/one", *SECRETS)
    assert " --secret WANDB_API_KEY --secret HF_TOKEN " in file.splitlines()[0]
    assert yaml.safe_load(file)["secrets"] == {"WANDB_API_KEY": None, "HF_TOKEN": None}
    assert "of-nobody" not in manifest + file


@pytest.mark.parametrize("engine", ["gke", "sky"])
def test_the_value_of_a_secret_is_refused_and_not_repeated(engine, capsys):
    words = ["launch", engine, ONE, "--out", "gs://b/one", "--image", "docker:x", "--secret", "HF_TOKEN=of-nobody\n"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "--secret: name an environment variable, such as WANDB_API_KEY, without its value" in said.err
    assert "of-nobody" not in said.out + said.err


def test_the_name_of_a_single_training_is_not_doubled(printed):
    def names(*words):
        words = [ONE, *words, "--topology", "v5e:1x1", "--out", "gs://b/one", *IMAGE]
        return [one["metadata"]["name"].rpartition("-")[0] for one in yaml.safe_load_all(printed("gke", *words))]

    assert names() == ["tiny"]
    assert names("--config.vmap.seeds=0,1") == ["tiny-seed0", "tiny-seed1"]


def test_a_single_training_is_launched_as_a_study_of_one(printed):
    words = [ONE, "--config.recipe.budgets_tokens=65536", "--out", "/shared/one", "--chip", "cpu", "--json"]
    (task,) = json.loads(printed("slurm", *words))
    command = "moejax train --out /shared/one/models/tiny --data /shared/one/data --programs /shared/one/programs"
    assert task["command"] == command.split()


def test_the_expected_time_of_a_training_is_printed(capsys):
    words = [ONE, "--config.recipe.budgets_tokens=65536", "--out", "/shared/one"]
    assert main(["launch", "slurm", *words, "--chip", "h100"]) == 0
    said = capsys.readouterr().err
    assert re.search(r": 1 NVIDIA H100 SXM on 1 node, mesh one device, about \S+ hours, \S+ chip-hours", said)
    assert re.search(
        "; remat none, compute_dtype float32, batch .* tokens in sequences of .*, budgets 65536 tokens", said
    )
    assert ", data python_stdlib" in said
    assert "set them with --nodes. Set the mesh with --config.recipe.mesh.AXIS=N" in said
    assert main(["launch", "slurm", *words, "--nodes", "1", "--price", "2"]) == 0
    said = capsys.readouterr().err
    assert "set them with" not in said
    assert re.search(r", \S+ chip-hours, cost \S+ at 2 an hour", said)
    assert main(["launch", "slurm", *words, "--chip", "cpu"]) == 0
    assert ": CPUs of 1 node, time limit 1,440 minutes; no time is estimated for CPUs" in capsys.readouterr().err


def test_a_slice_is_printed_with_its_chips(capsys):
    words = [ONE, "--out", "gs://b/one", *IMAGE]
    assert main(["launch", "gke", *words, "--topology", "v5e:4x4"]) == 0
    assert ": 1 slice of v5e:4x4 (16 chips), mesh " in capsys.readouterr().err


def test_a_launch_names_the_recomputation_that_needs_fewer_gpus(capsys):
    config = STUDIES.parent / "moe_1b.py"
    words = ["launch", "slurm", f"--config={config}", "--out", "/shared/one", "--config.recipe.data.source=web"]
    said = {}
    for remat in ("none", "full"):
        assert main([*words, f"--config.recipe.runtime.remat={remat}"]) == 0
        said[remat] = capsys.readouterr().err
    fewer = re.search(r"with --config.recipe.runtime.remat=(\w+), (\d+) suffice", said["none"])
    assert "suffice" not in said["full"]
    assert main([*words, f"--config.recipe.runtime.remat={fewer[1]}"]) == 0
    assert f": {fewer[2]} NVIDIA H100 SXM on 1 node, mesh" in capsys.readouterr().err


def test_a_launched_training_has_the_numbers_it_would_have_here():
    from moejax.cli.config_file import load
    from moejax.study.study import Study, study_of
    from moejax.train.training import Training, vmapped_runs

    axes = ["--config.vmap.seeds=0,3", "--config.vmap.learning_rates=1e-3,2e-3"]
    for overrides in ([], axes):
        here = load(Training, ONE.removeprefix("--config="), overrides)
        study = study_of(here)
        study.check()
        assert warnings(study) == []
        stored = build(Study, json.loads(json.dumps({**study.identity(), "analysis": dump(study.analysis)})))
        there = {one.name: one.fingerprint() for one in stored.trainings()}
        assert there == {one.name: one.fingerprint() for one in vmapped_runs(here)}
        assert len(there) == (4 if overrides else 1)


def test_a_setting_that_neither_a_training_nor_a_study_has_is_refused(capsys):
    assert main(["launch", "slurm", ONE, "--config.architecture.topk=1", "--out", "x"]) == 2
    assert "did you mean top_k" in capsys.readouterr().err


def test_skypilot_outside_a_checkout_says_what_it_needs(capsys, tmp_path, monkeypatch):
    words = ["launch", "sky", TINY, "--chip", "h100", "--out", "gs://b/tiny"]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert f"{tmp_path} is not a checkout of moejax" in capsys.readouterr().err
    assert main([*words, "--image", "docker:registry/moejax:gpu"]) == 0
    assert "a checkout" not in capsys.readouterr().err
    monkeypatch.chdir(STUDIES.parents[1])
    assert main(words) == 0
    assert "a checkout" not in capsys.readouterr().err


def test_a_slice_that_is_chosen_holds_the_training():
    from moejax.cli.config_file import load
    from moejax.study.estimate import chips_for
    from moejax.study.study import Study

    study = load(Study, PILOT[0].removeprefix("--config="), PILOT[1:])
    (training,) = study.trainings()
    for chip in GKE_ACCELERATORS:
        (one,) = estimate(study, find(chip), mfu=0.4).trainings
        sizes = [topology.devices for topology in rentable(chip)]
        if chip in ("v4", "v5e", "v6e"):
            with pytest.raises(ValueError, match=training.name):
                chips_for(training, one, find(chip).device, sizes)
        else:
            assert chips_for(training, one, find(chip).device, sizes) >= one.chips_at_least


def test_no_number_of_chips_is_chosen_that_the_training_refuses():
    from moejax.architecture import Architecture
    from moejax.data.config import DataConfig
    from moejax.study.estimate import chips_for
    from moejax.study.study import study_of
    from moejax.train.mesh import MeshShape
    from moejax.train.training import Recipe, Training

    architecture = Architecture(
        vocab_size=512, model_dim=64, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=16,
        num_experts=4, top_k=2, expert_hidden=96,
    )  # fmt: skip
    recipe = Recipe(
        budgets_tokens=(65_536, 131_072),
        batch_tokens=2048,
        data=DataConfig(sequence_length=128),
        mesh=MeshShape(data=1, tensor=-1),
    )
    training = Training(name="wide", architecture=architecture, recipe=recipe)
    (one,) = estimate(study_of(training), find("v5p"), mfu=0.4).trainings
    assert chips_for(training, one, find("v5p"), [64, 32]) == 32
    with pytest.raises(ValueError, match=r"With 64 chips: expert_hidden is 96, .* not divisible by mesh\.tensor = 64"):
        chips_for(training, one, find("v5p"), [64])


def _wide(**recipe):
    """Two layers of half a billion parameters, whose batch is of 64 sequences."""
    from moejax.architecture import Architecture
    from moejax.train.training import Recipe, Training

    architecture = Architecture(
        vocab_size=32_768, model_dim=2048, num_layers=2, num_heads=16, num_kv_heads=16, head_dim=128,
        num_experts=64, top_k=4, expert_hidden=512,
    )  # fmt: skip
    given = {"batch_tokens": 262_144, "data": DataConfig(sequence_length=4096)} | recipe
    return Training(name="wide", architecture=architecture, recipe=Recipe(budgets_tokens=(2_621_440,), **given))


def test_a_training_gets_as_many_chips_as_its_step_needs_and_not_one_sequence():
    from moejax.study.estimate import chips_for
    from moejax.study.study import study_of

    def sized(training, *sizes):
        (one,) = estimate(study_of(training), find("h100"), mfu=0.4).trainings
        assert one.chips_at_least == 1
        return chips_for(training, one, find("h100"), sizes)

    sizes = (1, 2, 4, 8, 16, 32, 64)
    assert sized(_wide(), *sizes) > 1
    # What is not held at once needs no chip.
    assert sized(_wide(microbatches=64), *sizes) == 1


def test_a_number_of_chips_that_was_named_is_taken_and_warned_of_where_none_is_chosen(capsys):
    from moejax.study.estimate import chips_for
    from moejax.study.study import study_of

    training = _wide()
    (one,) = estimate(study_of(training), find("h100"), mfu=0.4).trainings
    assert chips_for(training, one, find("h100"), [1]) == 1
    assert "GB on each of 1 chips, but 85% of NVIDIA H100 SXM is 68 GB" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"recipe\.microbatches .* or name the number of chips yourself"):
        chips_for(training, one, find("h100"), [1, 2])


def test_hosts_of_skypilot_find_each_other_through_its_variables(printed, run_by_a_shell):
    words = [TINY, "--chip", "h100", "--nodes", 2, "--chips-per-node", 4, "--out", "gs://b/tiny"]
    for task in yaml.safe_load_all(printed("sky", *words)):
        assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, {"H100": 4})
        for rank in "01":
            here = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": rank}
            command = run_by_a_shell(task["run"], **here)
            assert command[:3] == ["-m", "moejax", "train"]
            assert command[-6:] == ["--coordinator", "10.0.0.1:8476", "--processes", "2", "--process", rank]
            assert "--distributed" not in command
    for task in yaml.safe_load_all(printed("sky", TINY, "--chip", "h100", "--out", "gs://b/tiny")):
        assert (task["num_nodes"], task["resources"]["accelerators"]) == (1, {"H100": 1})
        assert "--coordinator" not in task["run"]


@pytest.mark.parametrize("chip", GKE_ACCELERATORS)
def test_slices_are_whole_machines(chip):
    for topology in rentable(chip):
        assert topology.chips % chips_per_host(topology) == 0
        assert cloud_tpu_type(topology).startswith(("v", "tpu7x"))


def test_names_are_kubernetes_names_and_different_ones_stay_different():
    names = [kubernetes_name(text) for text in ("zhao-E16", "zhao-e16", "zhao_e16", "9" * 80, "9" * 81)]
    assert len(set(names)) == 5
    assert all(len(name) <= 40 and name[0].isalpha() for name in names)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slurm", TINY, "--out", "gs://b/x"], "a folder that all nodes share"),
        (["slurm", TINY, "--set", "partition"], "--set partition has no value"),
        (["slurm", TINY, "--set", "=x"], "'' is not an sbatch option"),
        (["slurm", TINY, "--set", "nodes=3"], "set by --nodes and --chips-per-node"),
        (
            ["slurm", TINY, "--set", "cpus_per_task=3"],
            "--set cpus_per_task=3: cpus-per-task is set by --cores; use --cores 3.",
        ),
        (["slurm", TINY, "--set", "time=30"], "time is set by --minutes; use --minutes 30."),
        (["slurm", TINY, "--set", "time=1:00:00"], "time is set by --minutes; use --minutes."),
        (["slurm", TINY, "--set", "output=x"], "output is set by launch itself; leave it out."),
        (["slurm", TINY, "--set", "qos=a", "--set", "qos=b"], "--set qos was given twice"),
        (["slurm", TINY, "--chip", "cpu", "--minutes", "3"], "the signal to save comes 120 seconds before the limit"),
        (["slurm", TINY, "--chip", "cpu", "--nodes", "3"], "on --nodes 3: A batch has 32 sequences"),
        (["slurm", TINY, "--chip", "h100", "--nodes", "3"], "cannot be trained on 24 chips"),
        (["slurm", TINY, "--chip", "h1000"], "did you mean h100"),
        (["slurm", PILOT[0], "--chip", "h100"], "Shard it with --config.recipe.mesh.fsdp=-1"),
        (
            ["gke", PILOT[0], PILOT[1].replace("8388608", "8306688"), *PILOT[2:], "--out", "gs://b/x", *IMAGE],
            "A batch has 2028 sequences, which",
        ),
        (["gke", TINY, "--out", "runs/x", *IMAGE], "a bucket, such as gs://BUCKET/STUDY"),
        (["gke", TINY, "--out", "s3://b/x", *IMAGE], "GKE mounts Google Cloud Storage buckets"),
        (["slurm", TINY, "--chip", "v5p"], "v5p is a TPU, but Slurm jobs train on NVIDIA GPUs"),
        (["slurm", TINY, "--out", "gs:/b/x"], "gs:/b/x has only one slash; write gs://b/x"),
        (["slurm", TINY, "--out", "s3://"], "s3:// names no bucket; give s3://BUCKET/FOLDER"),
        (["gke", TINY, "--out", "gs://b/x", *IMAGE, "--topology", "v5p:4x4x5"], "Give one of the nearest: v5p:4x4x4"),
        (["gke", TINY, "--out", "gs://b/x", *IMAGE, "--chip", "h100"], "h100 is not a TPU that GKE offers"),
        (
            ["gke", PILOT[0], "--out", "gs://b/x", *IMAGE, "--config.recipe.runtime.matmul_quantization=fp8"],
            "v5p does not support such matmuls; choose 'int8' or 'none', or another chip",
        ),
        (["gke", TINY, "--out", "/other/x", *IMAGE, "--volume", "claim:/shared"], "an --out below PATH"),
        (["gke", TINY, "--out", "/shared/../etc", *IMAGE, "--volume", "claim:/shared"], "an --out below PATH"),
        (["gke", TINY, "--out", "gs://b/x", *IMAGE, "--topology", "v5e:2x4", "--chip", "v5p"], "leave out --chip"),
        (["gke", TINY, "--out", "gs://b/x", *IMAGE, "--queue", "$(q)"], "--queue is '$(q)', which is not a valid name"),
        (["sky", TINY, "--out", "gs://b/x", "--topology", "v5e:2x4", "--chip", "h100"], "leave out --chip"),
        (["sky", TINY, "--out", "gs://b/x", "--topology", "2xv5p:2x2x1"], "moejax launch gke for several"),
        (["sky", TINY, "--out", "gs://b/x", "--chip", "v5p", "--nodes", "2"], "--nodes counts GPU machines"),
    ],
)
def test_a_mistake_is_a_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slurm", "--out", "OUT"], "This machine lacks some of Slurm's commands (sbatch, squeue, srun)"),
        (["gke", "--out", "gs://b/x", *IMAGE], "kubectl is not installed on this machine (nor is gcloud"),
        (["sky", "--out", "gs://b/x", "--image", "docker:x"], "SkyPilot (sky) is not installed on this machine"),
    ],
)
def test_an_engine_that_is_absent_is_a_sentence_and_nothing_is_written(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", words[0], TINY, "--submit", *words[1:]]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Commands of engines, which note how they were called, and what they were then given."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def stand_in(name, answer=""):
        (folder / name).write_text(
            f"#!/bin/sh\necho {name} $* >> {folder}/calls\ncase $1 in apply) cat;; esac >> {folder}/given\n"
            f"case $1 in get) echo '{answer}';; esac\n"
        )
        (folder / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return stand_in, lambda name: (folder / name).read_text().splitlines()


@pytest.fixture
def texts(tmp_path):
    """A corpus of its own."""
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"Sentence {number} after another. " * 40)
    return [f"--config.recipe.data.source={tmp_path / 'texts'}", "--config.recipe.data.validation_tokens=1024"]


def test_a_jobset_that_has_ended_is_replaced_and_the_study_is_laid_out_in_the_bucket(called, texts, printed_names):
    stand_in, read = called
    ended = {"metadata": {"name": printed_names[0]}, "status": {"terminalState": "Failed"}}
    running = {"metadata": {"name": printed_names[1]}, "status": {}}
    stand_in("kubectl", json.dumps({"items": [ended, running]}))
    words = ["gke", TINY, *texts, "--topology", "v5e:1x1", *IMAGE, "--out", "memory://gke-bucket/tiny", "--submit"]
    assert main(["launch", *words]) == 0
    get, delete, apply = read("calls")
    assert get.startswith("kubectl get jobsets")
    assert delete.split()[-1] == printed_names[0]
    assert apply == "kubectl apply --filename=-"
    assert sum(line == "kind: JobSet" for line in read("given")) == len(printed_names)
    system = open_storage("memory://gke-bucket/tiny")
    assert system.exists("study.json")
    assert system.exists("data/manifest.json")
    assert len(matching(system, "models/*/training.json")) == len(printed_names)
    assert list(launched("memory://gke-bucket/tiny", "gke").values()) == printed_names


@pytest.fixture
def printed_names(texts, capsys, tmp_path):
    """Names of the JobSets."""
    return _names_in("memory://gke-bucket/tiny", texts, capsys)


def _names_in(out, texts, capsys):
    words = ["gke", TINY, *texts, "--topology", "v5e:1x1", *IMAGE, "--out", out]
    assert main(["launch", *words]) == 0
    return [one["metadata"]["name"] for one in yaml.safe_load_all(capsys.readouterr().out)]


def test_a_study_in_another_folder_is_another_to_the_cluster(texts, capsys):
    """Or the one would take the place of the other's JobSets."""
    here, again, other = (_names_in(f"memory://names/{out}", texts, capsys) for out in ("tiny", "tiny/", "other"))
    assert here == again
    assert not {*here} & {*other}


def test_skypilot_is_not_given_again_what_it_has(called, texts, capsys):
    stand_in, read = called
    stand_in("sky")
    words = ["launch", "sky", TINY, *texts, "--chip", "h100", "--out", "memory://sky-bucket/tiny", "--submit"]
    assert main(words) == 2
    assert "is not a checkout of moejax. Run the command in a checkout, or name an image" in capsys.readouterr().err
    words += ["--image", "docker:registry/moejax:gpu"]
    assert main(words) == 0
    first = len(read("calls"))
    assert read("calls")[0].startswith("sky jobs launch --name zhao-tiny-")
    assert main(words) == 0
    assert "not submitted, since SkyPilot already has these jobs" in capsys.readouterr().err
    assert len(read("calls")) == first
    assert main([*words, "--again"]) == 0
    assert len(read("calls")) == 2 * first


def test_a_corpus_in_the_bucket_is_opened_by_those_who_see_it_and_one_that_is_only_here_is_refused(tmp_path):
    mount, _ = mounted("gs://bucket/study")
    assert holds_corpus(mount, DataConfig(source="/bucket/sets/web"))
    assert not holds_corpus(mount, DataConfig(source=str(tmp_path)))
    (tmp_path / "manifest.json").touch()
    with pytest.raises(ValueError, match=r"is only on this machine\. Copy it into gs://bucket"):
        holds_corpus(mount, DataConfig(source=str(tmp_path)))


def test_a_folder_of_another_study_is_refused(capsys, tmp_path):
    from moejax.cli.config_file import load
    from moejax.study.study import Study

    study = load(Study, TINY.removeprefix("--config="), [])
    other = dataclasses.replace(study, seed=5)
    write_json(tmp_path / "study.json", other.identity())
    assert main(["launch", "slurm", TINY, "--out", str(tmp_path), "--chip", "cpu"]) == 2
    assert "belongs to another run: seed was 5, is 0" in capsys.readouterr().err


HOSTILE = "a b'c\"d$(touch owned);touch owned;`touch owned` $$(HOME) &|#é"
"""A folder's name that a shell would run if it were not quoted."""


@pytest.fixture
def run_by_a_shell(tmp_path_factory):
    """What a script hands to the commands that it names, word by word; it runs nothing else."""
    stand_ins, here = tmp_path_factory.mktemp("stand-ins"), tmp_path_factory.mktemp("here")
    for name in ("python", "srun", "sky"):
        (stand_ins / name).write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
        (stand_ins / name).chmod(0o755)

    def run(script, **variables):
        environment = os.environ | {"PATH": f"{stand_ins}:/usr/bin:/bin", **variables}
        found = subprocess.run(["bash", "-eu"], input=script.encode(), capture_output=True, cwd=here, env=environment)
        assert (found.returncode, found.stderr) == (0, b""), found.stderr.decode()
        assert not list(here.iterdir())
        return found.stdout.decode().split("\0")[:-1]

    return run


def test_a_script_of_slurm_quotes_the_folder(printed, run_by_a_shell):
    script = printed("slurm", TINY, "--out", f"/shared/{HOSTILE}", "--chip", "cpu", "--cores", 4)
    words = run_by_a_shell(script)
    assert words[-1] == f"/shared/{HOSTILE}/slurm/%j"
    listed = script.partition("# Commands, by index in the array:")[2].splitlines()[1:]
    lines = [*filter(None, (line.partition(":")[2] for line in listed))]
    assert lines
    for line in lines:
        command = shlex.split(line)
        assert command[command.index("--data") + 1] == f"/shared/{HOSTILE}/data"


def test_lines_of_setup_run_before_python_in_every_process_and_a_failing_one_ends_it(printed, run_by_a_shell):
    def process(*lines):
        setup = [word for line in lines for word in ("--setup", line)]
        words = run_by_a_shell(printed("slurm", TINY, "--out", "/shared/tiny", "--chip", "cpu", *setup))
        shell = words[words.index("bash") : words.index(sys.executable)]
        return subprocess.run([*shell, "printenv", "NAME", "ARGUMENTS"], capture_output=True, text=True, check=False)

    # A script that a line sources sees no arguments of the process.
    assert process("export NAME='a  b'", "export ARGUMENTS=$#").stdout == "a  b\n0\n"
    ended = process("export NAME=a ARGUMENTS=b", "false")
    assert (ended.returncode, ended.stdout) == (1, "")


def test_a_folder_whose_name_slurm_would_change_is_refused(capsys):
    assert main(["launch", "slurm", TINY, "--out", "/shared/100%j", "--chip", "cpu", "--cores", "4"]) == 2
    assert "contains %, which Slurm replaces in log names; choose another --out" in capsys.readouterr().err


def _as_kubernetes_takes_it(word):
    assert "$" not in word.replace("$$", "")
    return word.replace("$$", "$")


def test_a_manifest_of_kubernetes_holds_the_folder_as_it_is(printed):
    words = [TINY, "--topology", "v6e:1x1", "--out", f"gs://bucket/{HOSTILE}", *IMAGE]
    jobsets = list(yaml.safe_load_all(printed("gke", *words)))
    for jobset in jobsets:
        job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        command = [_as_kubernetes_takes_it(word) for word in job["containers"][0]["command"]]
        assert command[command.index("--data") + 1] == f"/bucket/{HOSTILE}/data"


def test_a_task_file_of_skypilot_quotes_the_folder(printed, run_by_a_shell):
    for chip in (["--chip", "h100"], ["--topology", "v6e:1x1"]):
        text = printed("sky", TINY, *chip, "--out", f"s3://bucket/{HOSTILE}")
        heads = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# sky")]
        assert all(run_by_a_shell(head)[:3] == ["jobs", "launch", "--name"] for head in heads)
        for task in yaml.safe_load_all(text):
            words = run_by_a_shell(task["run"])
            assert words[words.index("--data") + 1] == f"/bucket/{HOSTILE}/data"


@pytest.mark.parametrize("words", [["--set", "account=a\n#SBATCH --wrap=evil"], ["--config.name=a\nrm x"]])
def test_no_word_begins_a_line_of_its_own_in_a_script(words, capsys):
    assert main(["launch", "slurm", TINY, "--chip", "cpu", *words]) == 2
    said = capsys.readouterr()
    assert "has a line break or another control character" in said.err
    assert said.out == ""


def test_the_chip_of_an_estimate_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    said = []
    for words in ([], ["--chip", "h200", "--mfu", "0.3"], ["--chip", "cpu"]):
        assert main(["launch", "slurm", TINY, "--out", "/shared/x", *words]) == 0
        said.append(capsys.readouterr().err)
    assert "estimates for NVIDIA H100 SXM at 40% MFU" in said[0]
    assert "estimates for NVIDIA H200 SXM at 30% MFU" in said[1]
    assert "estimates for" not in said[2]
