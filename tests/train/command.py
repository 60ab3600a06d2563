"""``moejax train`` as a process, on a training of seconds; and what it leaves, read without moejax's own reader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorstore

from moejax import stored
from moejax.train.directory import metrics, row

CONFIG = '''
"""Two layers, two budgets, a checkpoint every fourth step, a line of the log at every one."""
from ml_collections import ConfigDict

def get_config():
    config = ConfigDict()
    config.name = "small"
    config.architecture = dict(
        vocab_size=257, model_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8,
        num_experts=4, top_k=2, expert_hidden=8, expert_bias=True,
    )
    config.recipe = dict(
        budgets_tokens=[4_096, 8_192],
        batch_tokens=256,
        data=dict(source={source!r}, sequence_length=32, validation_share=0.2, validation_tokens=512),
        optimizer=dict(learning_rate=1e-2, warmup_tokens=512, decay_share=0.4),
        loss=dict(expert_bias_rate=1e-3),
        log_every_steps=1,
        checkpoint_tokens=1_024,
    )
    return config
'''

WORDS = ["the ", "router ", "sends ", "each ", "token ", "to some ", "experts ", "and the ", "loss ", "falls.\n"]


def write_config(folder):
    """A config file, and the text that it names."""
    dice = np.random.default_rng(0)
    (folder / "text").mkdir(parents=True)
    for number in range(40):
        (folder / "text" / f"{number}.txt").write_text("".join(dice.choice(WORDS, 200)))
    path = folder / "small.py"
    path.write_text(CONFIG.replace("{source!r}", repr(str(folder / "text"))))
    return path


def environment(cache):
    """Of a user without fake devices or threads asked for. Programs are compiled once for all processes that share
    ``cache``; without one, a training keeps its own."""
    plain = {name: value for name, value in os.environ.items() if name != "NPROC"}
    plain |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.environ.get("MOEJAX_TEST_XLA_FLAGS", "")}
    if cache is None:
        return plain
    return plain | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def command(*words):
    """The command line; on one core, where a small model trains fastest, and each of pytest's workers on its own."""
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return [sys.executable, "-m", "moejax", "train", "--core", str(cores[worker % len(cores)]), *map(str, words)]


def run(cache, *words):
    """Run it to its end."""
    return subprocess.run(command(*words), env=environment(cache), capture_output=True, text=True, check=False)


def start(cache, *words):
    """Start it, its output unseen, as the leader of a group of processes of its own."""
    return subprocess.Popen(
        command(*words), env=environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def logged(folder):
    """All lines of the log in their order, without the clock's."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in metrics.OF_THE_CLOCK} for line in lines]


def rows(folder):
    """The rows, without the clock's columns, what tells how many devices there were, and the seal."""
    apart = (*row.OF_THE_CLOCK, "num_devices", "config", stored.SEAL)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("branch-*.json"))]
    return [{key: value for key, value in row.items() if key not in apart} for row in found]


def lines(folder):
    """How many lines the log has."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def newest_states(folder):
    """Every array of the newest checkpoint of each phase, by phase and name."""
    found = {}
    for phase in sorted(path for path in (folder / "checkpoints").iterdir() if path.name != "damaged"):
        newest = max(int(path.name) for path in phase.iterdir() if path.name.isdigit())
        state = phase / str(newest) / "state"
        found |= {(phase.name, newest, name): array for name, array in saved_arrays(state).items()}
    return found


def saved_arrays(state: Path):
    """Every array of a checkpoint, by its dotted name."""
    entries = json.loads((state / "_METADATA").read_text())["tree_metadata"].values()
    names = [".".join(str(key["key"]) for key in entry["key_metadata"]) for entry in entries]
    kept = [name for name, entry in zip(names, entries, strict=True) if entry["value_metadata"]["value_type"] != "None"]
    return {name: _read(state, name) for name in kept}


def _read(state, name):
    kvstore = {"driver": "ocdbt", "base": f"file://{state}/", "path": f"{name}/"}
    return np.asarray(tensorstore.open({"driver": "zarr", "kvstore": kvstore}, open=True).result().read().result())


def assert_same_training(found, expected):
    """Parameters, optimizer state, log and data order, bit for bit, and nothing logged twice."""
    assert logged(found) == logged(expected)
    steps = [(line["phase"], line["step"]) for line in logged(found)]
    assert len(set(steps)) == len(steps)
    assert rows(found) == rows(expected)
    ours, theirs = newest_states(found), newest_states(expected)
    assert ours.keys() == theirs.keys()
    different = [name for name, array in ours.items() if array.tobytes() != theirs[name].tobytes()]
    assert not different


LOSS = 2e-5
"""Largest difference of a loss, nats: the mesh changes the order of sums, and nothing else."""


def assert_close(found, expected):
    """The same batches in the same order, bit for bit, and the same numbers up to the order of sums."""
    ours, theirs = logged(found), logged(expected)
    for key in ("phase", "step", "tokens", "batch_digest"):
        assert [line[key] for line in ours] == [line[key] for line in theirs]
    np.testing.assert_allclose([line["loss"] for line in ours], [line["loss"] for line in theirs], atol=LOSS)
    np.testing.assert_allclose([row["loss"] for row in rows(found)], [row["loss"] for row in rows(expected)], atol=LOSS)
    states, others = newest_states(found), newest_states(expected)
    assert states.keys() == others.keys()
    for name, array in states.items():
        np.testing.assert_allclose(array, others[name], atol=1e-3, err_msg=str(name))
