"""moejax sample: text from weights, and sentences where there is none to be had."""

import json
import shutil

import jax
import pytest
from small_model import SMALL
from tokenizers import Tokenizer, models, processors

from moejax.__main__ import main
from moejax.model import transformer
from moejax.weights.folder import save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "small"
    save_weights(folder, SMALL, transformer.init(SMALL, jax.random.key(0)))
    return folder


def test_a_prompt_is_continued_and_the_seed_decides_how(weights, capsys):
    def continued(*words):
        assert main(["sample", str(weights), "--prompt", "def f(", "--tokens", "12", "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)["continuations"]

    first, again, other = continued(), continued(), continued("--seed", "1")
    assert first == again != other
    assert len(continued("--samples", "3")) == 3
    assert len(set(continued("--samples", "3", "--temperature", "0"))) == 1


@pytest.mark.parametrize(("template", "opens"), [("<s> $A", True), ("$A", False)])
def test_a_prompt_is_read_after_what_the_template_puts_there(template, opens, weights, tmp_path, monkeypatch):
    tokenizer = Tokenizer(models.BPE({chr(97 + i): i for i in range(26)}, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", begin)])
    shutil.copytree(weights, tmp_path / "converted")
    tokenizer.save(str(tmp_path / "converted" / "tokenizer.json"))
    prompts = []
    monkeypatch.setattr(
        "moejax.evaluation.sample.generate", lambda a, r, p, prompt, *_, **__: prompts.append(prompt.tolist()) or prompt
    )
    for folder, words in ((tmp_path / "converted", []), (weights, ["--tokenizer", "bytes"])):
        assert main(["sample", str(folder), "--prompt", "abc", *words]) == 0
    assert prompts == [[[*[begin] * opens, 0, 1, 2]], [[256, 97, 98, 99]]]


def test_the_text_is_printed_with_its_prompt(weights, capsys):
    assert main(["sample", str(weights), "--prompt", "def f(", "--tokens", "4", "--top-k", "5"]) == 0
    assert capsys.readouterr().out.startswith("def f(")
    assert main(["sample", str(weights), "--prompt", "def f(", "--tokens", "4", "--samples", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--- 1 of 2 ---\ndef f(")
    assert "\n\n--- 2 of 2 ---\ndef f(" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--tokenizer", "ids:900:0"], "The tokenizer has 900 tokens, but the model has 257"),
    ],
)
def test_a_mistake_is_a_sentence(weights, words, sentence, capsys):
    assert main(["sample", str(weights), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_a_model_is_refused(tmp_path, capsys):
    assert main(["sample", str(tmp_path)]) == 2
    assert "has no model" in capsys.readouterr().err
