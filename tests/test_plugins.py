"""Another installed package adds a law, a router or a family, which the command line then uses as its own."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.huggingface import FAMILIES, families_and_own_code
from moejax.huggingface.weight_mapping import pairs
from moejax.laws import ALIASES, CLAIMS, DECISIONS, LAWS, NOT_SEARCHED, PUBLISHED, entries
from moejax.routing import ROUTERS
from moejax.train.directory.row import versions
from moejax.train.directory.saved_weights import find_saved_state, read_saved
from moejax.weights.safetensors import Kind, TensorFile, TensorFileWriter

LAW = '''
from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, coefficient, law


@law
class DataOnly:
    """L(D) = E + B / D^beta.

    Smith 2026. D is ``tokens``, L is in nats per token.
    """

    inputs: ClassVar[tuple[str, ...]] = ("tokens",)
    outputs: ClassVar = LOSS

    irreducible: Scalar = coefficient("loss that no data remove", symbol="E")
    scale: Scalar = coefficient("scale of the data term", symbol="B", dimension={"tokens": "exponent"})
    exponent: Scalar = coefficient("exponent of tokens", symbol="beta")

    def __call__(self, design: Design) -> Any:
        return self.irreducible + self.scale * design.tokens**-self.exponent


ENTRY = LawEntry(name="data_only", law=DataOnly, aliases=("smith",))
'''

ROUTER = '''
import jax

from moejax.routing.routing import Routing, gather_scores, token_choice, top_k_indices


def tempered(logits, *, top_k, bias=None, key=None) -> Routing:
    """Apply softmax at temperature 2, then top k."""
    probabilities = jax.nn.softmax(logits / 2.0, axis=1)
    expert = top_k_indices(probabilities, top_k, bias)
    return token_choice(logits, probabilities, expert, gather_scores(probabilities, expert))
'''

FAMILY = """
from dataclasses import replace

from moejax.huggingface.families import MIXTRAL
from moejax.huggingface.weight_mapping import ATTENTION, experts, model

EXAMPLE = replace(
    MIXTRAL,
    name="example_moe",
    model_class="ExampleMoeForCausalLM",
    fields={**MIXTRAL.fields, "num_experts_per_token": "top_k"},
    mappings=lambda architecture: [*model(architecture.tied_embeddings), *ATTENTION, *experts("mixture")],
)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package of one module with one entry point: ``install(group, "NAME = MODULE:OBJECT", text)``."""
    names = []

    def forget():
        entries.cache_clear()
        for registry in (LAWS, PUBLISHED, ALIASES, DECISIONS, CLAIMS, NOT_SEARCHED, ROUTERS, FAMILIES):
            registry.forget()

    def installed(group, line, text):
        names.append(name := f"moejax_example_{len(names)}")
        site = tmp_path / name
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[moejax.{group}]\n{line.replace('MODULE', name)}\n")
        (site / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(site)
        forget()
        return name

    yield installed
    forget()
    for name in names:
        sys.modules.pop(name, None)


def test_a_law_of_another_package_is_listed_fitted_and_asked(install, tmp_path, capsys):
    install("laws", "data_only = MODULE:ENTRY", LAW)
    tokens, table = np.geomspace(1e8, 1e10, 12), tmp_path / "runs.csv"
    noise = 1 + 1e-3 * np.cos(np.arange(12))
    pd.DataFrame({"tokens": tokens, "loss": (1.5 + 400.0 * tokens**-0.25) * noise}).to_csv(table, index=False)
    assert main(["laws", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["law"] == "data_only"
    assert main(["fit", str(table), "--law", "smith", "--starts", "64", "--out", str(tmp_path / "fit")]) == 0
    assert FitResult.load(tmp_path / "fit" / "fit.json").law.exponent == pytest.approx(0.25, abs=0.02)
    capsys.readouterr()
    assert main(["predict", "--law", str(tmp_path / "fit" / "fit.json"), "--tokens", "1e12", "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)["predictions"]
    assert said["values"]["loss"] == pytest.approx(1.5 + 400.0 * 1e12**-0.25, rel=0.02)
    assert main(["fit", str(table), "--law", "smit"]) == 2
    assert "smith" in capsys.readouterr().err


CONFIG = """
from ml_collections import ConfigDict


def get_config():
    config = ConfigDict()
    config.name = "routed"
    config.architecture = dict(
        vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
        num_experts=4, top_k=2, expert_hidden=8, router="tempered",
    )
    config.recipe = dict(
        budgets_tokens=[512],
        batch_tokens=256,
        data=dict(source={source!r}, sequence_length=32, validation_share=0.3, validation_tokens=64),
        optimizer=dict(learning_rate=1e-2, decay_share=0.5, weight_decay=0.0),
        loss=dict(balance=0.0, router_z=0.0),
    )
    return config
"""


def test_a_router_of_another_package_trains_and_its_gradient_reaches_the_router(install, tmp_path):
    install("routers", "tempered = MODULE:tempered", ROUTER)
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number} routers send tokens to experts. " * 20)
    config, out = tmp_path / "routed.py", tmp_path / "out"
    config.write_text(CONFIG.replace("{source!r}", repr(str(tmp_path / "text"))))
    assert main(["train", f"--config={config}", "--out", str(out)]) == 0
    start, end = (find_saved_state(path) for path in sorted((out / "checkpoints").iterdir(), reverse=True))
    assert (start.step, end.step) == (1, 2)
    router, whole = "moe_layers.feed_forward.router", (slice(None),)
    assert (read_saved(end, router, whole) != read_saved(start, router, whole)).all()


def test_a_family_of_another_package_is_read_and_written(install, tmp_path, capsys):
    install("huggingface", "example_moe = MODULE:EXAMPLE", FAMILY)
    sizes = {"vocab_size": 11, "model_dim": 8, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
    architecture = Architecture(
        **sizes, num_experts=4, top_k=2, expert_hidden=6, tied_embeddings=False, norm_epsilon=1e-5
    )
    theirs, family = tmp_path / "theirs", FAMILIES["example_moe"]
    tensors = {p.theirs: p.whole for p in pairs(architecture, family.mappings(architecture))}
    kinds = {name: Kind(np.dtype(np.float32), shape) for name, shape in tensors.items()}
    dice = np.random.default_rng(0)
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps(family.config(architecture)))
    with TensorFileWriter(theirs / "model.safetensors", kinds) as file:
        for name, shape in tensors.items():
            file.write(name, (), dice.normal(size=shape).astype(np.float32))
    ours, back = tmp_path / "ours", tmp_path / "back"
    assert main(["convert", "--from", "hf", str(theirs), "--out", str(ours)]) == 0
    assert main(["convert", "--to", "hf", str(ours), "--out", str(back)]) == 0
    assert json.loads((back / "config.json").read_text())["architectures"] == ["ExampleMoeForCausalLM"]
    with TensorFile(theirs / "model.safetensors") as one, TensorFile(back / "model.safetensors") as other:
        assert "model.layers.0.mixture.experts.0.up_proj.weight" in one.kinds
        assert one.kinds.keys() == other.kinds.keys()
        assert all(np.array_equal(one.read(name), other.read(name)) for name in one.kinds)


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        ("chinchilla = MODULE:ENTRY", LAW, "has the name or alias 'chinchilla' of another plugin"),
        (
            "data_only = MODULE:ENTRY",
            "import absent_module",
            "cannot be imported (Python reported: ",
        ),
        ("data_only = MODULE:DataOnly", LAW, "is a type and must be a LawEntry"),
        ("another = MODULE:ENTRY", LAW, "loads an object with the name 'data_only'; both names must be equal"),
        ("data_only = MODULE:ENTRY", LAW.replace('"smith"', '"hoffmann"'), "the name or alias 'hoffmann'"),
        ("five-factor = MODULE:ENTRY", LAW, "has an invalid name; use lower-case letters, digits and underscores"),
        ("data_only = MODULE:ENTRY", "import sys; sys.exit(0)", "cannot be imported"),
        ("data_only = MODULE:ENTRY", LAW.replace("law=DataOnly", "law=int"), "give a class decorated with"),
        ("data_only = MODULE:ENTRY", LAW.replace('("smith",)', "None"), "give a tuple of lower-case names"),
    ],
)
def test_a_package_that_cannot_be_used_is_named_in_a_sentence_and_stops_only_who_asks_for_it(
    install, capsys, line, text, said
):
    install("laws", line, text)
    assert main(["--help"]) == 0
    capsys.readouterr()
    assert main(["laws", "--json"]) == 0
    shown = capsys.readouterr()
    assert "data_only" not in shown.out
    assert said in shown.err
    assert "moejax-example-0 1.0" in shown.err
    assert shown.err.count("\n") == 1
    if (name := line.partition(" ")[0]) in ("data_only", "another"):
        assert main(["predict", "--law", name, "--tokens", "1e12"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["tempered = int", "tempered = 3"])
def test_a_router_is_a_function(install, text):
    install("routers", "tempered = MODULE:tempered", text)
    assert "tempered" not in list(ROUTERS)
    assert "softmax_topk" in ROUTERS
    with pytest.raises(UserError, match=r"moejax-example-0 1.0.* must be a function"):
        ROUTERS["tempered"]


def test_a_family_that_cannot_be_used_stops_only_a_conversion_of_its_models(install, capsys):
    install("huggingface", "example_moe = MODULE:EXAMPLE", "import absent_module")
    known = families_and_own_code()
    assert list(known) == [*FAMILIES, "moejax"]
    assert "Until then it is ignored." in capsys.readouterr().err
    with pytest.raises(UserError, match=r"moejax-example-0 1.0.* cannot be imported"):
        known.get("example_moe")


def test_what_a_package_prints_does_not_spoil_a_result_and_its_version_is_recorded(install, capsys):
    install("laws", "data_only = MODULE:ENTRY", f"print('hello')\n{LAW}")
    assert main(["laws", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["law"] == "data_only"
    install("routers", "tempered = MODULE:tempered", ROUTER)
    assert versions()["moejax-example-1"] == "1.0"


def test_a_package_that_is_imported_first_is_whole(install):
    name = install("laws", "data_only = MODULE:ENTRY", LAW)
    module = __import__(name)
    assert LAWS["data_only"] is module.DataOnly
