"""The command line: help a person can read, configs checked as they come in, mistakes as sentences, exit status 2."""

import gc
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moejax.__main__ import _consequence, main
from moejax.cli import COMMANDS
from moejax.cli.command_line import split_overrides
from moejax.report import synthetic

CONFIG = """
from ml_collections import ConfigDict
def get_config(arg="small"):
    config = ConfigDict()
    config.name = arg
    config.architecture = dict(vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
                               num_experts=4, top_k=2, expert_hidden=16)
    config.recipe = dict(budgets_tokens=[4096], batch_tokens=512, data=dict(sequence_length=64))
    return config
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(CONFIG)
    return path


def test_the_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)
    assert max(map(len, said.splitlines())) <= 120


def test_help_and_the_page_give_every_exit_status(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split("exit status:")[1]
    table = Path("docs/commands.md").read_text().split("| exit status | meaning |\n")[1].split("\n\n")[0]
    statuses = re.findall(r"^\| (\d+) ", table, re.M)
    assert sorted(statuses) == ["0", "1", "130", "2", "75"]
    assert all(re.search(rf"\b{status} [a-z]", shown) for status in statuses)
    of_one = re.search(r"\| 1 \|.*", Path("docs/commands.md").read_text())
    assert "a failed check" in of_one[0]
    assert "1 a bug in moejax or a failed check" in shown


def test_overrides_are_read_as_the_type_they_replace(config_file):
    from moejax.cli.config_file import load
    from moejax.train.training import Training

    words = ["architecture.top_k=1", "recipe.budgets_tokens=4k,8K", "recipe.optimizer.learning_rate=1e-3"]
    words += ["architecture.capacity_factor=1.25", "architecture.qk_norm=true", "recipe.batch_tokens=1_024"]
    training = load(Training, f"{config_file}:other", [f"--config.{word}" for word in words])
    assert training.name == "other"
    assert training.architecture.top_k == 1
    assert training.architecture.capacity_factor == 1.25
    assert training.architecture.qk_norm is True
    assert training.recipe.budgets_tokens == (4_000, 8_000)
    assert training.recipe.batch_tokens == 1024
    assert training.recipe.optimizer.learning_rate == 1e-3


@pytest.mark.parametrize("key", ["²", "١", "01", "-1", "2", "9" * 5_000])
def test_an_item_of_a_list_that_is_not_there_is_named(key):
    from moejax.cli.config_file import override
    from moejax.errors import UserError

    with pytest.raises(UserError, match=r"give an item of the list config\.sizes, from 0 to 1"):
        override({"sizes": [1, 2]}, f"--config.sizes.{key}=3")


@pytest.mark.parametrize("text", ["-" * 50_000, "[" * 50_000, "1if 1else 2", "{[]: 1}", "plain"])
def test_what_python_cannot_read_as_a_value_is_a_text(text, recwarn):
    from moejax.cli.config_file import override

    settings = {"note": None}
    override(settings, f"--config.note={text}")
    assert settings["note"] == text
    assert not recwarn.list


EXAMPLES = [
    shlex.split(line.partition("  #")[0])[1:]
    for text in (
        Path("README.md").read_text(),
        *(importlib.import_module(f"moejax.cli.commands.{name}").EXAMPLE for name in ("train", "study")),
    )
    for line in text.splitlines()
    if "--config=configs" in line and line.strip().startswith(("moejax train", "moejax study"))
]


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_every_example_names_something_that_can_be_trained(words):
    from moejax.cli.config_file import load
    from moejax.study.study import Study
    from moejax.train.training import Training

    rest, overrides = split_overrides(words[1:])
    config = next(word for word in rest if word.startswith("--config=")).removeprefix("--config=")
    load({"train": Training, "study": Study}[words[0]], config, overrides).check()


def test_what_is_no_user_error_is_raised_as_it_is(monkeypatch):
    monkeypatch.setattr("moejax.cli.commands.laws.LawsCommand.run", lambda arguments: json.loads("{"))
    with pytest.raises(ValueError, match="Expecting property name"):
        main(["laws"])


OURS = """
import sys
from moejax.__main__ import command
from moejax.cli import command_line

def run(words):
    raise {raised}

command_line.run = run
sys.argv = ["moejax", "laws"]
command()
"""


def test_out_of_memory_on_this_machine_is_a_sentence_with_the_size(monkeypatch, capsys):
    def too_much(arguments):
        return bytearray(2**60)

    monkeypatch.setattr("moejax.cli.commands.laws.LawsCommand.run", too_much)
    assert main(["laws"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moejax: This machine has too little memory.")
    assert said.count("\n") == 1


@pytest.mark.parametrize("raised", ["ValueError('x')", "OSError(5, 'x', 'y')"])
def test_a_mistake_of_moejaxs_is_a_traceback_and_asks_for_a_report(raised):
    ended = subprocess.run(
        [sys.executable, "-c", OURS.format(raised=raised)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback")
    assert ended.stderr.splitlines()[-1].startswith(
        "moejax: this is a bug in moejax, not a mistake of yours; please report it"
    )


def test_overrides_may_be_written_with_a_space():
    found = split_overrides(["--config=x.py", "--config.a.b", "3", "--json", "--config.c=4"])
    assert found == (["--config=x.py", "--json"], ["--config.a.b=3", "--config.c=4"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config.architecture.top_k=9"], "top_k is 9 and num_experts is 4"),
        (["--config.architecture.topk=1"], "config.architecture.topk is unknown; did you mean top_k"),
        (["--config.architecture=1"], "is a group of settings"),
        (["--config.architecture.top_k.x=1"], "is a single setting"),
        (["--config.architecture.top_k"], "has no value"),
        (["--config.architecture.qk_norm=maybe"], "must be true or false"),
        (["--config.recipe.batch_tokens=1.5"], "whole number"),
        (["--config.architecture.router=magic"], "router 'magic' is unknown"),
        (["--config.architecture.router=switch"], "set top_k to 1"),
        (["--config.recipe.runtime.dispatcher=magic"], "dispatcher is 'magic'; choose from"),
        (["--config.recipe.data.source=pile"], "no file or folder pile to read. Give an existing one, python_stdlib"),
        (["--config.name=../x"], "it names a folder"),
    ],
)
def test_a_mistake_in_a_training_is_a_sentence(config_file, tmp_path, capsys, words, sentence):
    """MaxText #3649, #3933."""
    assert main(["train", f"--config={config_file}", "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("moejax: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "trian is not a command; did you mean train"),
        (["zzz"], "choose from init, data, study, launch, train"),
        (["train", "--config=nowhere.py"], "There is no config file nowhere.py"),
        (["count", "--config", ""], "There is no config file '';"),
        (["train"], "No training run was named"),
        (["study"], "No study was named"),
        (
            ["study", "--out", "x"],
            "--out x was given without --config; add --config=FILE.py to start a study in it, or --resume",
        ),
        (["launch", "slurm", "--out", "x"], "--out x was given without --config; add --config=FILE.py"),
        (["study", "--resume", "--out", "nowhere"], "nowhere holds no study"),
        (["train", "--config.seed=1", "--out", "x"], "also name the file, with --config=FILE.py"),
        (["report", "nowhere"], "nowhere"),
        (["reproduce", "--json="], "--json: is empty; give a local path"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_sentence(words, sentence, capsys):
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


def test_ctrl_c_that_meets_the_garbage_collector_stops_the_command_all_the_same(monkeypatch, capsys):
    def collect(arguments):
        def callback(phase, info):
            gc.callbacks.remove(callback)
            signal.raise_signal(signal.SIGINT)

        gc.callbacks.append(callback)
        gc.collect()
        time.sleep(30)

    monkeypatch.setattr("moejax.cli.commands.laws.LawsCommand.run", collect)
    # A worker of pytest's does not listen.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["laws"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.strip().startswith("Stopped.")


@pytest.mark.parametrize(
    ("number", "imported", "status"),
    [(signal.SIGTERM, b"moejax.cli", 75), (signal.SIGINT, b"moejax.cli", 130), (signal.SIGINT, b"jaxlib.version", 130)],
)
def test_a_signal_during_an_import_is_a_sentence(number, imported, status):
    # The process ignores SIGINT if it inherits this from a worker of pytest-xdist.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "import moejax.__main__; moejax.__main__.command()"
    words = ["design", "--law", "zhao", "--flops", "1e21"]
    command = [sys.executable, "-X", "importtime", "-c", program, *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    # jaxlib imports its native modules after its version.
    while imported not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(number)
    said = process.communicate()[1]
    assert b". The result is not complete" in said
    assert b"Traceback" not in said
    assert process.returncode == status


def test_a_stopped_command_says_what_is_kept_and_leaves_no_empty_folder(tmp_path, monkeypatch, capsys):
    def stopped(self):
        from moejax.cli.out_folder import out_set

        with out_set(tmp_path / "out"):
            raise KeyboardInterrupt

    monkeypatch.setattr("moejax.cli.commands.plan.PlanCommand.run", stopped)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        words = ["--config=configs/tiny.py", "--topology", "cpu:8", "--out", str(tmp_path / "out")]
        assert main(["plan", *words]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Stopped. The result is not complete" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert "Files written so far are kept" in _consequence(["train"])


MISTAKES = """
trian
train --confg=x.py
train
train --wait 0 --out x
study
study stats nowhere
launch slurm
fit README.md --recipe chinchilla
fit README.md --law zhao --form x
count --arch glm-4.5 --sequence-length 0
convert --from gguf x --out y
laws shw zhao
plot
predict --law all --constants besiroglu
design --law zhao --flops 1e21 --within 0
leverage a b --law zhao
ranges --params-total 1e9
sample nowhere --tokens 0
data prepare x --out y --validation-share 1
"""


def test_what_needs_no_mathematics_to_be_refused_is_refused_before_it_is_imported():
    """Imports of JAX and matplotlib take seconds, and a typing error is told at once."""
    code = (
        "import sys; from moejax.__main__ import main\n"
        "for line in sys.argv[1].strip().splitlines():\n"
        "    try: status = main(line.split())\n"
        "    except SystemExit as stopped: status = stopped.code\n"
        "    heavy = {'jax', 'matplotlib', 'pandas', 'scipy'} & set(sys.modules)\n"
        "    assert status == 2 and not heavy, (line, status, heavy)"
    )
    subprocess.run([sys.executable, "-c", code, MISTAKES], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["study", "--config=configs/studies/quickstart.py", "--config.models.none.top_k=1"], "config.models.none is"),
        (
            ["train", "--config=configs/tiny.py", "--config.recipe.budgets_tokens.9=1"],
            "give an item of the list config.recipe.budgets_tokens, from 0 to",
        ),
        (["count", "--config=configs/tiny.py", "--config.recipe.data.sequence_length=32"], ""),
    ],
)
def test_what_only_the_config_file_can_tell_is_said_when_it_has_been_read(words, sentence, capsys):
    assert main(words) == (2 if sentence else 0)
    assert sentence in capsys.readouterr().err


def test_ctrl_c_while_the_command_line_is_imported_is_a_sentence(monkeypatch, capsys):
    class Stops:
        def find_spec(self, name, *others):
            if name == "moejax.cli.command_line":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "moejax.cli.command_line")
    monkeypatch.setattr(sys, "meta_path", [Stops(), *sys.meta_path])
    assert main(["laws"]) == 130
    assert capsys.readouterr().err.strip().startswith("Stopped.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "no function get_config; define one that returns"),
        ("def get_config(): return {}", "it must be an ml_collections.ConfigDict"),
        (
            "import nothing_like_this",
            "cannot be run (Python reported: ModuleNotFoundError: No module",
        ),
        ("def get_config(:", "cannot be run (Python reported: SyntaxError: "),
        ("def get_config(): return {}['x']", "get_config of"),
        ("def get_config(size): return {}", "needs an argument"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, capsys, text, sentence):
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert main(["train", f"--config={path}"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused(config_file, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["train", f"--config={config_file}", "--out", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_results_that_a_file_is_in_the_way_of_are_refused_before_the_work(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["report", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "taken")]) == 2
    assert "is a file; choose another --out." in capsys.readouterr().err


ENDS = """
import atexit, ctypes, sys
from moejax.__main__ import command
from moejax.cli import command_line

class Native:
    "What a library's thread meets when the interpreter has been taken apart."
    def __del__(self, read=ctypes.string_at):
        read(0)

taken_apart, run = Native(), command_line.run
def with_a_library(words):
    atexit.register(print, "what was registered has run")
    return run(words)

command_line.run = with_a_library
sys.argv = ["moejax", {word!r}]
command()
"""


@pytest.mark.parametrize(("word", "status"), [("--version", 0), ("nothing", 2)])
def test_a_process_ends_with_its_status_whatever_its_libraries_meet_afterwards(word, status):
    ended = subprocess.run([sys.executable, "-c", ENDS.format(word=word)], capture_output=True, text=True, check=False)
    assert ended.returncode == status, ended.stderr
    assert ended.stdout.endswith("what was registered has run\n")
    assert ("moejax: nothing is not a command" in ended.stderr) == (status == 2)


WRITES = """
import asyncio, atexit, sys, time
import numpy, tensorstore
from moejax.__main__ import command
from moejax.cli import command_line

def opened(number):
    kvstore = {"driver": "file", "path": f"DIR/{number}"}
    return tensorstore.open(
        {"driver": "zarr", "kvstore": kvstore}, create=True, dtype=tensorstore.float32, shape=[2000, 2000]
    ).result()

async def waits(write):
    await write

async def fails():
    values = numpy.random.default_rng(0).random((2000, 2000), numpy.float32)
    tasks = [asyncio.ensure_future(waits(opened(number).write(values))) for number in range(8)]
    await asyncio.sleep(0.001)
    raise ValueError

def run(words):
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(fails())
    except ValueError:
        loop.close()
    # The others end after the command has returned, and before the process does.
    atexit.register(time.sleep, 2)
    return 2

command_line.run = run
sys.argv = ["moejax"]
command()
"""


def test_writes_that_end_after_one_that_failed_show_no_traceback(tmp_path):
    ended = subprocess.run([sys.executable, "-c", WRITES.replace("DIR", str(tmp_path))], capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("after", "status", "sentence"),
    [("> /dev/full", 2, "the disk is full; free some space"), ("| head -c 1; exit ${PIPESTATUS[0]}", 0, "")],
    ids=["a full disk", "a reader that goes away"],
)
def test_output_that_cannot_be_printed_ends_in_no_traceback(after, status, sentence):
    words = f"{shlex.quote(sys.executable)} -m moejax laws --json {after}"
    found = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert found.returncode == status
    assert sentence in found.stderr
    assert len(found.stderr.splitlines()) <= 1


def test_a_terminal_without_unicode_shows_what_it_can():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    words = [sys.executable, "-m", "moejax", "laws", "show", "chinchilla"]
    found = subprocess.run(words, capture_output=True, env=environment)
    assert found.returncode == 0
    assert found.stdout.isascii()


def test_more_processes_than_are_started_here_are_refused(config_file, capsys):
    assert main(["train", f"--config={config_file}", "--processes", "1000"]) == 2
    assert "give at most 256" in capsys.readouterr().err


def test_a_value_of_two_dashes_and_a_folder_with_a_line_break_are_refused(capsys):
    assert main(["predict", "--law", "chinchilla", "--tokens=--"]) == 2
    assert "--tokens is '--', which is not a value" in capsys.readouterr().err
    assert main(["fit", "runs.csv", "--out", "a\ntouch b"]) == 2
    assert "control characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "closed", "status"), [("laws", ">&-", 0), ("trian", "2>&-", 2), ("trian", ">&- 2>&-", 2)]
)
def test_a_closed_stream_changes_no_status(words, closed, status):
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m moejax {words} {closed}", shell=True, capture_output=True, check=False
    )
    assert done.returncode == status
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["\x1b[31m"],
        ["fit", "\x1b[31m\a\n.csv", "--law", "chinchilla"],
        ["predict", "--law", "\x1b[31m\u202e", "--tokens", "1e9"],
        ["status", "\x1b[31m"],
        ["count", "\x1b[31m"],
        ["fit", "runs.csv", "--law", "x" * 300_000],
    ],
)
def test_a_mistake_is_told_in_characters_that_can_be_printed(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(words))
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said) < 3000


BEYOND = {
    "starts": ["fit", "runs.csv", "--law", "chinchilla", "--starts", "1e12"],
    "a budget": ["fit", "runs.csv", "--law", "chinchilla", "--decide", "flops=1e308"],
    "a sweep": ["design", "--law", "chinchilla", "--sweep", "flops=1e-300:1e300"],
    "a share": ["design", "--law", "chinchilla", "--flops", "1e22", "--mfu", "1e-300"],
    "a price": ["study", "--config=configs/studies/quickstart.py", "--dry-run", "--price", "1e300"],
    "an infinite option": ["next", "runs.csv", "--law", "chinchilla", "--flops", "1e18", "--reach", "inf"],
}


@pytest.mark.parametrize("beyond", BEYOND)
def test_a_number_beyond_what_can_be_computed_with_is_refused_in_a_sentence(beyond, capsys, tmp_path):
    synthetic.runs(12).to_csv(tmp_path / "runs.csv", index=False)
    words = [str(tmp_path / word) if word == "runs.csv" else word for word in BEYOND[beyond]]
    try:
        status = main(words)
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    said = capsys.readouterr().err
    assert "number" in said
    assert "give" in said or "write" in said


def test_a_config_prints_into_no_result_and_moves_no_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    moves = "import os, sys; print('loading'); os.chdir('other'); "
    for ends in ("", "sys.stdout.close()"):
        (tmp_path / "prints.py").write_text(f"{moves}{ends}{CONFIG}")
        assert main(["count", "--config=prints.py", "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)
        assert ends or "loading" in shown.err
        assert Path.cwd() == tmp_path
