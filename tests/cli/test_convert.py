"""moejax convert: from the command line, with mistakes as sentences and exit status 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import small_model

from moejax.__main__ import main
from moejax.architecture import Architecture
from moejax.cli.commands.convert import ConvertCommand
from moejax.huggingface import FAMILIES
from moejax.huggingface.weight_mapping import pairs
from moejax.train.directory.saved_weights import SavedState
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import DataConfig, Recipe, Training
from moejax.weights.folder import load_weights
from moejax.weights.safetensors import Kind, TensorFile, TensorFileWriter

SMALL = small_model.SMALL.replace(
    vocab_size=11, model_dim=8, head_dim=4, expert_hidden=6, tied_embeddings=False, norm_epsilon=1e-5
)


def write(folder: Path, architecture: Architecture, dtype=np.float32) -> Path:
    """A Mixtral checkpoint, written tensor by tensor."""
    family = FAMILIES["mixtral"]
    kinds = {p.theirs: Kind(np.dtype(dtype), p.whole) for p in pairs(architecture, family.mappings(architecture))}
    folder.mkdir()
    random = np.random.default_rng(0)
    with TensorFileWriter(folder / "model.safetensors", kinds) as file:
        for name, kind in kinds.items():
            file.write(name, (), random.normal(size=kind.shape).astype(dtype))
    (folder / "config.json").write_text(json.dumps(family.config(architecture)))
    return folder


def test_a_model_whose_routers_get_no_gradient_is_read_and_said_so(tmp_path, capsys):
    theirs = write(tmp_path / "theirs", SMALL.replace(top_k=1))
    assert main(["convert", "--from", "hf", str(theirs), "--out", str(tmp_path / "ours")]) == 0
    said = capsys.readouterr().out
    assert "cannot be trained further: top_k is 1" in said
    assert "Set norm_topk_prob to False" in said
    assert load_weights(tmp_path / "ours").architecture == SMALL.replace(top_k=1)


@pytest.fixture
def theirs(tmp_path):
    return write(tmp_path / "theirs", SMALL)


def test_there_and_back(theirs, tmp_path, capsys):
    assert main(["convert", "--from", "hf", str(theirs), "--out", str(tmp_path / "ours")]) == 0
    assert "mixtral, 41 tensors, " in capsys.readouterr().out
    assert load_weights(tmp_path / "ours").architecture == SMALL
    back = ["convert", "--to", "hf", str(tmp_path / "ours"), "--out", str(tmp_path / "back"), "--json"]
    assert main([*back, "--dtype", "bfloat16", "--shard-bytes", "1k"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["family"] == "mixtral"
    assert said["tensors"] == 41
    own = ["convert", "--to", "hf:moejax", str(tmp_path / "ours"), "--out", str(tmp_path / "own")]
    assert main(own) == 0
    assert (tmp_path / "own" / "modeling_moejax.py").is_file()
    other = ["convert", "--to", "hf:olmoe", str(tmp_path / "ours"), "--out", str(tmp_path / "other")]
    assert main(other) == 2
    assert "olmoe cannot express" in capsys.readouterr().err
    assert main([*own[:-1], str(tmp_path / "predicted"), "--law", "chinchilla"]) == 2
    assert "--law needs a training run" in capsys.readouterr().err
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 2
    with TensorFile(files[0]) as file:
        assert {str(kind.dtype) for kind in file.kinds.values()} == {"bfloat16"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "gguf", "{theirs}"], "Unknown format --from gguf. Write --from hf, and a PATH"),
        (["--to", "gguf", "{theirs}"], "Unknown format --to gguf. Write --to hf or weights"),
        (["--from", "hf", "nowhere"], "nowhere does not exist. Give the folder of a Hugging Face checkpoint"),
        (["--to", "hf", "nowhere"], "nowhere does not exist. Give the --out of a training run, a checkpoint in it"),
        (["--to", "weights", "nowhere"], "the folder nowhere does not exist. Give the --out of a training run"),
        (["--to", "hf", "{theirs}"], "is neither a folder of weights"),
        (["--to", "weights", "{theirs}"], "is not in the folder of a training run"),
        (["--to", "weights", "{theirs}", "--dtype", "float32"], "--to weights keeps the run's parameter type"),
        (["--to", "weights:mixtral", "{theirs}"], "Unknown format --to weights:mixtral. Write --to hf or weights"),
        (["--to", "weights", "{theirs}", "--family", "mixtral"], "Unknown format --to weights:mixtral"),
        (["--from", "hf:mixtral", "{theirs}"], "Unknown format --from hf:mixtral. Write --from hf, and a PATH"),
    ],
)
def test_a_mistake_is_said_and_nothing_is_written(words, said, theirs, tmp_path, capsys):
    words = [word.format(theirs=theirs) for word in words]
    assert main(["convert", *words, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}


def test_a_model_card_has_no_loss_that_is_predicted_far_beyond_a_laws_range(capsys):
    def predicted(architecture, budget):
        recipe = Recipe(
            budgets_tokens=(budget,),
            batch_tokens=2**16,
            data=DataConfig(sequence_length=1024),
            optimizer=OptimizerConfig(learning_rate=1e-3),
        )
        training = Training(name="small", architecture=architecture, recipe=recipe)
        saved = SavedState(training, Path("run"), "trunk", recipe.steps(budget))
        command = ConvertCommand(target=("hf", "run"), out=Path("out"), law="zhao")
        return command._predicted(saved), capsys.readouterr().err

    text, said = predicted(SMALL.replace(vocab_size=300), 2**20)
    assert not text
    assert "more than" in said
    assert "beyond the law's fitted range: " in said
    sizes = {"model_dim": 1024, "num_layers": 16, "num_heads": 16, "head_dim": 64, "num_experts": 64, "top_k": 4}
    text, said = predicted(SMALL.replace(**sizes, expert_hidden=512, vocab_size=65_536), 2**34)
    assert "nats/token by" in text
    assert not said


def test_an_out_that_is_there_is_refused_before_anything_is_read(theirs, capsys):
    assert main(["convert", "--from", "hf", "nowhere", "--out", str(theirs)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_an_out_that_cannot_be_written_is_refused(theirs, capsys):
    assert main(["convert", "--from", "hf", str(theirs), "--out", str(theirs / "config.json" / "below")]) == 2
    assert "choose another --out" in capsys.readouterr().err


def peak_bytes(*words: str) -> int:
    """The most memory that a moejax process had; ``ru_maxrss`` would begin with that of the process that starts it."""
    code = "import sys; from pathlib import Path; from moejax.__main__ import main; status = main(sys.argv[1:]);"
    code += "print(status, Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    status, kilobytes = done.stderr.split()[-2:]
    assert status == "0", done.stderr
    return int(kilobytes) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory from /proc")
@pytest.mark.parametrize(
    "size",
    [
        SMALL.replace(vocab_size=64, model_dim=256, expert_hidden=1024, num_experts=16, num_layers=4),
        pytest.param(
            SMALL.replace(vocab_size=64, model_dim=512, expert_hidden=2048, num_experts=32, num_layers=11),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["a fifth of a GB", "more than 4 GB"],
)
@pytest.mark.slow
def test_memory_is_that_of_a_tensor_and_not_of_the_checkpoint(size, theirs, tmp_path, capsys):
    large = write(tmp_path / "large", size)
    whole = (large / "model.safetensors").stat().st_size
    one = 4 * size.model_dim * size.expert_hidden
    assert whole > 150 * one
    for start, peaks in {"hf": [], "back": []}.items():
        for name in ("theirs", "large"):
            words = ["--from", "hf", str(tmp_path / name), "--out", str(tmp_path / f"{name}-ours")]
            if start == "back":
                words = ["--to", "hf", str(tmp_path / f"{name}-ours"), "--out", str(tmp_path / f"{name}-back")]
            peaks.append(peak_bytes("convert", *words))
            shutil.rmtree(words[2])
        more = peaks[1] - peaks[0]
        print(f"{start}: {whole:,} bytes, largest tensor {one:,}, {more:,} more memory than {peaks[0]:,}")
        # The tensor as read, rearranged and cast, and what the allocator keeps.
        assert more < 8 * one + 10_000_000
        assert more < whole / 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train", "--config=tiny", "--config.architecture.shared_expert_gate=False", "--exportable", "hf"],
            "qwen2_moe cannot express shared_expert_gate = False (nearest value: True)",
        ),
        (
            ["train", "--config=tiny", "--exportable", "hf:mixtral"],
            "mixtral cannot express num_shared_experts = 1 (nearest value: 0), shared_expert",
        ),
        (["train", "--config=tiny", "--exportable", "hf:llama"], "Unknown family 'llama'"),
        (["train", "--config=tiny", "--exportable", "gguf"], "--exportable gguf is unknown"),
        (
            ["train", "--config=tiny", "--config.architecture.router=expert_choice", "--exportable", "hf:moejax"],
            "moejax cannot express this architecture: router 'expert_choice'",
        ),
        (["study", "--config=quickstart", "--exportable", "hf"], "dense-32 cannot be exported"),
        (["launch", "slurm", "--config=quickstart", "--exportable", "hf"], "dense-32 cannot be exported"),
    ],
)
def test_what_could_not_be_exported_is_refused_before_it_is_trained_if_asked(
    words, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "\\n" not in shown
    assert not list(tmp_path.iterdir())
