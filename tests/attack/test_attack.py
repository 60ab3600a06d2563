"""No hostile command shows a traceback, changes a file of the user's, writes elsewhere or prints what is no JSON."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from hostile import STRATEGIES, Case, case_of, cases, sound, wrong
from hypothesis import HealthCheck, Phase, given, seed, settings

from moejax.cli import COMMANDS
from moejax.fit.selection.metrics import Metrics

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from known_study import TRUTH, _fit, write_study

CASES = Path(__file__).parent / "cases"
"""What once broke a promise, one case a file; what is found anew is written here."""


# Hypothesis prints every case into a message, and complains of those that hold a whole study.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The files of a study and of a fit, whole."""
    folder = write_study(tmp_path_factory.mktemp("attacked") / "s")
    found = dict.fromkeys(("mae", "rmse", "rmse_log", "r_squared", "max_relative_error"), 0.01)
    _fit(TRUTH, Metrics(runs=18, **found)).save(folder.parent / "fit.json")
    wanted = ("s/*.json", "s/data/*.json", "s/models/dense-32/*", "fit.json")
    found = [path for pattern in wanted for path in sorted(folder.parent.glob(pattern)) if path.is_file()]
    return {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in found}


def attacked(stored, count, number=None):
    """The smallest case of each fault that ``count`` commands find, and the share of them that did their work."""
    found: dict[str, Case] = {}
    seen = Counter()

    def attack(case):
        fault = wrong(case, seen)
        if fault and len(case.as_json()) < len(found[fault].as_json() if fault in found else case.as_json() + "."):
            found[fault] = case

    # By turns, and not by chance, so that what does its work has its share.
    for strategy, examples in ((sound(stored), count // 2), (cases(stored), count - count // 2)):
        run = given(strategy)(attack)
        if number is not None:
            run = seed(number)(run)
        settings(
            max_examples=examples,
            derandomize=number is None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(run)()
    for fault, case in found.items():
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{case.words[0]}-{fault}")[:80]
        (CASES / f"{name}.json").write_text(case.as_json() + "\n", encoding="utf-8")
    return {fault: case.words for fault, case in found.items()}, seen[0] / seen.total()


def test_every_command_is_attacked():
    assert set(STRATEGIES) == set(COMMANDS)


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_a_promise_breaks_none(path):
    assert wrong(case_of(path.read_text(encoding="utf-8"))) == ""


def test_a_case_is_kept_as_it_is():
    case = Case(("fit", "é\udc80"), {"runs.csv": bytes(range(256))})
    assert case_of(json.dumps(json.loads(case.as_json()))) == case


def test_fifty_hostile_commands_break_no_promise(stored):
    faults, done = attacked(stored, 50)
    assert faults == {}
    # Where most end at the first check, little of what is behind it was tried.
    assert done >= 0.4


@pytest.mark.slow
def test_five_thousand_hostile_commands_break_no_promise(stored):
    faults, done = attacked(stored, 5_000, int(os.environ.get("MOEJAX_ATTACK_SEED", "1")))
    assert faults == {}
    assert done >= 0.4


def _raises(words):
    raise KeyError


def _spoils(words):
    Path("mine").write_text("theirs")
    return 0


def _strays(words):
    Path("elsewhere").touch()
    return 0


def _no_json(words):
    print('{"loss": NaN}')
    return 0


def _library(words):
    print("jaxlib.xla_extension.XlaRuntimeError", file=sys.stderr)
    return 2


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (_raises, "KeyError at attack/test_attack.py:_raises"),
        (_spoils, "changed a file"),
        (_strays, "wrote outside --out"),
        (_no_json, "--json prints no JSON"),
        (_library, "shows jaxlib."),
        (lambda words: 2, "a mistake is answered with 0 characters"),
        (lambda words: 7, "exit status 7"),
        (lambda words: 1, "exit status 1"),
        (lambda words: sys.exit(0), "--json prints no JSON"),
    ],
)
def test_a_broken_promise_is_seen(command, fault, monkeypatch):
    monkeypatch.setattr("hostile.main", command)
    assert wrong(Case(("fit", "--out", "out", "--json"), {"mine": b"mine"})).startswith(fault)
