"""moejax eval: lm-evaluation-harness on our model says what it says of the exported one through its own adapter."""

import json
import math
import os
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers_models  # noqa: F401  (nothing is fetched)
from small_model import SMALL

from moejax import run_table
from moejax.__main__ import main
from moejax.data.train_tokenizer import train_tokenizer
from moejax.errors import UserError
from moejax.evaluation import validation_choices
from moejax.evaluation.load_model import load_model
from moejax.model import transformer
from moejax.model.runtime import Runtime
from moejax.train.directory.status import read_training
from moejax.train.loop import train
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import DataConfig, Recipe, Training

TOLERANCE = 1e-4
LENGTH = 48

TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "last_word": """
output_type: loglikelihood
doc_to_text: "{{question}}"
doc_to_target: " {{choices[answer]}}"
metric_list: [{metric: acc}, {metric: perplexity, aggregation: perplexity, higher_is_better: false}]
""",
    "whole": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "sums": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: " {{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


def documents():
    random = np.random.default_rng(0)
    for i, j in random.integers(0, 20, (12, 2)).tolist():
        choices = [str(i * j), str(i + j), str(i * j + 1), "nothing at all"]
        told = "" if i < 3 else f"Of {i} and {j} much could be said; " * (i // 6)
        yield {
            "question": f"{told}{i} times {j} is",
            "choices": choices,
            "answer": 0,
            "text": f"{i} times {j} is {i * j}. " * (1 + j),
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training on a tokenizer of its own, its export, and tasks that read a local file."""
    root = tmp_path_factory.mktemp("harness")
    texts = root / "texts"
    texts.mkdir()
    for i in range(30):
        (texts / f"{i}.txt").write_text("".join(f"{i} times {j} is {i * j}. " for j in range(40)))
    train_tokenizer(str(texts), root / "tokenizer.json", vocab_size=300)
    training = Training(
        name="small",
        architecture=SMALL.replace(
            vocab_size=300, model_dim=32, head_dim=16, expert_hidden=32, tied_embeddings=False, norm_epsilon=1e-5
        ),
        recipe=Recipe(
            budgets_tokens=(40_960,),
            batch_tokens=1024,
            data=DataConfig(
                source=str(texts),
                tokenizer=str(root / "tokenizer.json"),
                sequence_length=LENGTH * 2 // 3,
                validation_share=0.2,
                validation_tokens=320,
            ),
            optimizer=OptimizerConfig(learning_rate=2e-2, warmup_tokens=4096),
        ),
    )
    train(training, root / "run")
    assert main(["convert", "--to", "hf", str(root / "run"), "--out", str(root / "hf")]) == 0
    tasks = root / "tasks"
    tasks.mkdir()
    (tasks / "documents.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents()))
    place = f"data_files: {{test: {tasks}/documents.jsonl}}, cache_dir: {root}/cache"
    for name, text in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{{place}}}\ntest_split: test"
        (tasks / f"{name}.yaml").write_text(f"{head}\nmetadata: {{version: 1.0}}\n{text.strip()}\n")
    (tasks / "far.yaml").write_text(
        f"task: far\ndataset_path: nobody/nothing\ntest_split: test\n{TASKS['choices'].strip()}\n"
    )
    return root


def ours(folder, of="run", *words):
    """The file that moejax eval writes."""
    out = folder / "results" / f"{of}.json"
    command = ["eval", str(folder / of), "--tasks", ",".join(TASKS), "--task-path", str(folder / "tasks"), "--samples"]
    assert main([*command, "--max-length", str(LENGTH), "--out", str(out), *words]) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def found(folder):
    return ours(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    """What the harness says through its own adapter of transformers."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder / "tasks", include_defaults=False)
    options = {"device": "cpu", "dtype": "float32", "batch_size": 4, "max_length": LENGTH, "backend": "causal"}
    found = {"results": {}, "samples": {}}
    # Of a whole text it scores what the template puts before it too, unless that is turned off.
    for tasks, template in ((set(TASKS) - {"whole"}, None), ({"whole"}, False)):
        model = HFLM(pretrained=str(folder / "hf"), add_bos_token=template, **options)
        part = simple_evaluate(model=model, tasks=sorted(tasks), task_manager=manager, bootstrap_iters=0)
        for name, values in found.items():
            values |= part[name]
    return found


def answers(results, task):
    """Of every document in order, what the model answered."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [[response for of_request in sample["resps"] for response in of_request] for sample in samples]


@pytest.mark.parametrize("task", ["choices", "last_word"])
def test_likelihoods_are_those_of_the_harness_own_adapter(task, found, theirs):
    mine, other = answers(found, task), answers(theirs, task)
    assert len(mine) == len(other) == 12
    np.testing.assert_allclose(
        [log for one in mine for log, _ in one], [log for one in other for log, _ in one], rtol=TOLERANCE
    )
    assert [greedy for one in mine for _, greedy in one] == [greedy for one in other for _, greedy in one]
    assert {greedy for one in mine for _, greedy in one} == {True, False}


def test_whole_texts_longer_than_the_window_cost_what_they_cost_there(found, theirs):
    np.testing.assert_allclose(answers(found, "whole"), answers(theirs, "whole"), rtol=TOLERANCE)
    tokenizer = load_model(Path(found["model"]["path"])).tokenizer
    assert max(map(len, tokenizer.encode([one["text"].encode() for one in documents()]))) > 2 * LENGTH


def test_greedy_continuations_are_those_of_the_harness_own_adapter(found, theirs):
    mine = answers(found, "sums")
    assert mine == answers(theirs, "sums")
    assert len({text for one in mine for text in one}) > 1


def test_metrics_are_the_same(found, theirs):
    for task in TASKS:
        for name, value in theirs["results"][task].items():
            if "stderr" not in name and isinstance(value, float):
                assert found["results"][task][name] == pytest.approx(value, rel=TOLERANCE), (task, name)


def test_likelihoods_are_our_own_cross_entropy(folder, found):
    model = load_model(folder / "run")
    w = model.weights
    forward = jax.jit(lambda tokens: transformer.forward(w.architecture, Runtime(), w.params, tokens)[0])
    for document, (answer,) in zip(documents(), answers(found, "last_word"), strict=True):
        asked, answered = document["question"], f"{document['question']} {document['choices'][0]}"
        context, whole = model.tokenizer.encode([asked.encode(), answered.encode()])
        target, tokens = len(whole) - len(context), np.append(model.tokenizer.end_of_document, whole)[-LENGTH - 1 :]
        filled = np.pad(tokens, (0, LENGTH + 1 - len(tokens)))
        shifted = np.asarray(forward(filled[None])[: len(tokens) - 1], np.float64)
        costs = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(shifted)), tokens[1:]]
        assert -answer[0] == pytest.approx(costs[-target:].sum(), rel=TOLERANCE)


def test_greedy_continuations_are_those_of_moejax_sample(folder, found, capsys):
    short = [pair for pair in zip(documents(), answers(found, "sums"), strict=True) if len(pair[0]["question"]) < 30]
    assert len(short) > 1
    for document, (answer,) in short[:2]:
        words = ["--prompt", document["question"], "--tokens", "12", "--temperature", "0", "--json"]
        assert main(["sample", str(folder / "run"), *words]) == 0
        (continued,) = json.loads(capsys.readouterr().out)["continuations"]
        assert answer == continued.split(".")[0]


def test_whole_texts_cost_their_own_tokens_after_the_end_of_a_document(folder, found):
    model = load_model(folder / "run")
    w = model.weights
    forward = jax.jit(lambda tokens: transformer.forward(w.architecture, Runtime(), w.params, tokens)[0])
    for document, (answer,) in zip(documents(), answers(found, "whole"), strict=True):
        tokens = model.tokenizer.encode([document["text"].encode()])[0]
        if len(tokens) <= LENGTH:
            row = np.pad(np.append(model.tokenizer.end_of_document, tokens), (0, LENGTH - len(tokens)))
            logs = np.asarray(jax.nn.log_softmax(forward(row[None])))
            assert answer == pytest.approx(logs[np.arange(len(tokens)), tokens].sum(), rel=TOLERANCE)


def test_transformers_opens_a_text_as_the_training_did_and_ends_where_a_document_ended(folder):
    from transformers import AutoTokenizer, GenerationConfig

    theirs, ours = AutoTokenizer.from_pretrained(folder / "hf"), load_model(folder / "run").tokenizer
    end = ours.end_of_document
    assert theirs("3 times 4 is").input_ids == [end, *ours.encode([b"3 times 4 is"])[0].tolist()]
    assert (theirs.bos_token_id, theirs.eos_token_id) == (end, end)
    assert GenerationConfig.from_pretrained(folder / "hf").eos_token_id == end


def test_the_export_is_the_same_model_with_the_same_results(folder, found):
    again = ours(folder, "hf", "--batch-tokens", "100")
    assert again["model"]["fingerprint"] == found["model"]["fingerprint"]
    assert again["tokenizer"]["sha256"] == found["tokenizer"]["sha256"]
    for task in TASKS:
        for name, value in found["results"][task].items():
            if isinstance(value, float) and not math.isnan(value):
                assert again["results"][task][name] == pytest.approx(value, rel=TOLERANCE), (task, name)


def test_the_file_says_what_was_evaluated_and_by_what(found):
    assert found["model"]["phase"] == "branch-40960"
    assert found["model"]["kind"] == "training"
    assert found["versions"].keys() >= {"moejax", "lm-eval", "jax", "datasets", "tokenizers"}
    assert found["task_versions"] == dict.fromkeys(TASKS, 1.0)
    assert found["documents"]["sums"] == {"original": 12, "effective": 12}
    assert found["settings"]["max_length"] == LENGTH


def test_a_limit_is_kept_and_results_lie_beside_the_model(folder, tmp_path, monkeypatch, capfd):
    # No repository of git, of which the harness would ask.
    monkeypatch.chdir(tmp_path)
    words = ["--tasks", "choices", "--task-path", str(folder / "tasks"), "--limit", "3"]
    assert main(["eval", str(folder / "hf"), *words, "--max-length", str(LENGTH)]) == 0
    written = json.loads((folder / "hf.choices.json").read_text())
    assert written["documents"]["choices"] == {"original": 12, "effective": 3}
    assert "samples" not in written
    said = capfd.readouterr()
    assert "acc_norm" in said.out
    assert "fatal" not in said.err


def test_a_budget_of_tokens_cuts_answers_off_and_their_lengths_are_kept(folder, found):
    out = folder / "results" / "short.json"
    words = ["--tasks", "sums", "--task-path", str(folder / "tasks"), "--samples", "--max-length", str(LENGTH)]
    assert main(["eval", str(folder / "run"), *words, "--max-new-tokens", "1", "--out", str(out)]) == 0
    short = json.loads(out.read_text())
    assert short["answers"]["sums"]["number"] == found["answers"]["sums"]["number"] == 12
    assert 0 < short["answers"]["sums"]["tokens"] <= 1 < found["answers"]["sums"]["tokens"]
    whole = answers(found, "sums")
    # More of a long context is kept before a shorter answer, which then is another.
    for document, (cut,), (answer,) in zip(documents(), answers(short, "sums"), whole, strict=True):
        assert answer.startswith(cut) or len(document["question"]) > 30
    words = [len(answer.split()) for (answer,) in whole]
    assert found["answers"]["sums"]["words"] == pytest.approx(sum(words) / len(words))


def test_a_study_asks_its_checkpoints_tasks_of_the_harness(folder, tmp_path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name in ("choices", "sums"):
        text = (folder / "tasks" / f"{name}.yaml").read_text()
        (tasks / f"{name}.yaml").write_text(text.replace("{version: 1.0}", "{version: 1.0, given_words: 7}"))
    config = read_training(folder / "run")
    study = {
        "name": "asked",
        "models": {"small": config["architecture"]},
        "recipe": config["recipe"] | {"budgets_tokens": [8192, 16384]},
        "analysis": {"laws": []},
        "downstream": {"tasks": ["choices", "sums"], "task_path": str(tasks), "limit": 5, "max_new_tokens": 1},
    }
    text = f"from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({study!r})\n"
    (tmp_path / "study.py").write_text(text)
    assert main(["study", f"--config={tmp_path / 'study.py'}", "--out", str(tmp_path / "out"), "--workers", "1"]) == 0
    scores = run_table.read(tmp_path / "out" / "scores.parquet")
    assert [*zip(scores["tokens"], scores["task"], strict=True)] == [
        (budget, task) for budget in (8192, 16384) for task in ("choices", "sums")
    ]
    assert set(scores["documents"]) == {5}
    assert set(scores["given_words"]) == {7}
    assert (scores.loc[scores["task"] == "sums", "answer_tokens"] <= 1).all()
    assert list(scores["error"]) == pytest.approx(100 - scores["score"])
    assert "Task errors by loss" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tasks", "choises"], "Task choises is unknown; did you mean choices"),
        (["--tasks", "lambada_opnai"], "did you mean lambada_openai"),
        (["--tasks", "qqqqzzzz"], "Task qqqqzzzz is unknown; lm-eval ls tasks lists the harness's tasks."),
        (["--tasks", "far"], "Task far could not be loaded"),
        (["--tasks", "far"], "Couldn't reach 'nobody/nothing'"),
        (["--tasks", "sums", "--max-length", "12"], "generate at least 1, and pass a larger --max-length"),
    ],
)
def test_a_mistake_is_a_sentence(words, sentence, folder, capsys):
    assert main(["eval", str(folder / "run"), "--task-path", str(folder / "tasks"), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_task_file_that_is_no_yaml_is_named_where_its_task_is_missed(folder, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("task: mine\n  dataset_path: [json\n")
    assert main(["eval", str(folder / "run"), "--task-path", str(tmp_path), "--tasks", "mine"]) == 2
    said = capsys.readouterr().err
    assert "Task mine is unknown" in said
    assert f"{tmp_path / 'mine.yaml'} cannot be read (yaml reported: " in said


def test_a_task_whose_files_are_not_there_is_not_told_to_reach_the_hub(folder, tmp_path, capsys):
    lines = ["task: mine", "dataset_path: json", "dataset_kwargs: {data_files: {test: none.jsonl}}", "test_split: test"]
    lines += ["output_type: multiple_choice", "doc_to_text: q", "doc_to_target: a", "doc_to_choice: [x, y]"]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    assert main(["eval", str(folder / "run"), "--task-path", str(tmp_path), "--tasks", "mine"]) == 2
    said = capsys.readouterr().err
    assert "none.jsonl" in said
    assert "the files that its task file names" in said
    assert "Hub" not in said


def test_a_model_that_is_not_there_is_named_before_tasks_are_looked_for(folder, capsys):
    assert main(["eval", str(folder / "none"), "--task-path", str(folder / "tasks"), "--tasks", "far"]) == 2
    assert "There is no folder" in capsys.readouterr().err


def test_a_misspelled_task_of_the_studys_own_text_is_told_its_name():
    from moejax.evaluation.harness import load_tasks

    with pytest.raises(UserError, match=r"did you mean validation_choices.*pass the folder .* \(--task-path FOLDER\)"):
        load_tasks(["validation_choicse"], others=[validation_choices.NAME])


def test_a_model_without_a_tokenizer_needs_one(folder, capsys):
    words = ["--tasks", "choices", "--task-path", str(folder / "tasks"), "--max-length", str(LENGTH)]
    os.rename(folder / "hf" / "tokenizer.json", folder / "aside.json")
    try:
        assert main(["eval", str(folder / "hf"), *words]) == 2
        assert (
            "contains no tokenizer. Pass the tokenizer that the model was trained with as --tokenizer"
            in capsys.readouterr().err
        )
        assert main(["eval", str(folder / "hf"), *words, "--tokenizer", str(folder / "aside.json")]) == 0
    finally:
        os.rename(folder / "aside.json", folder / "hf" / "tokenizer.json")
