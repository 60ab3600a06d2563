"""Hostile commands: words, tables, configs and stored files as somebody careless or malicious gives them.

A ``Case`` is one command line with the files it finds. ``wrong`` runs it in this process, in a folder of its own, and
says which promise of docs/reliability.md it breaks. Nothing here trains a model.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

from hypothesis import strategies as st

from moejax.__main__ import main
from moejax.cli import COMMANDS
from moejax.report import synthetic

STATUSES = {0, 1, 2, 75, 130}
MOST_SECONDS = 120
"""Of the processor's time in this process, so that other work on the machine does not decide."""
MOST_CHARACTERS = 20_000
"""Of what a mistake is answered with."""
LIBRARIES = (
    "Traceback (most recent",
    "Warning: ",
    "jaxlib.",
    "pandas.errors",
    "pyarrow.lib",
    "<class '",
    " object at 0x",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A command line and the files that lie in its folder."""

    words: tuple[str, ...]
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def as_json(self) -> str:
        files = {name: base64.b64encode(content).decode() for name, content in self.files.items()}
        return json.dumps({"words": self.words, "files": files}, indent=1)


def case_of(text: str) -> Case:
    plain = json.loads(text)
    return Case(tuple(plain["words"]), {name: base64.b64decode(data) for name, data in plain["files"].items()})


class Endless(BaseException):
    """A command took more of the processor's time than any of these may."""


def wrong(case: Case, seen: Counter[object] | None = None) -> str:
    """The promise that a case breaks, as one line that equal faults share; empty if it breaks none.

    ``seen`` counts exit statuses.
    """
    with tempfile.TemporaryDirectory(prefix="moejax-attack-") as folder, contextlib.chdir(folder):
        for name, content in case.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        before = _hashes()
        status, out, err, raised = _run(list(case.words))
        if seen is not None:
            seen[status] += 1
        if raised:
            return raised
        if status not in STATUSES or (status == 1 and case.words[0] != "reproduce"):
            return f"exit status {status}"
        after = _hashes()
        if changed := [name for name, content in before.items() if after.get(name) != content]:
            return f"changed a file of the user's: {Path(changed[0]).suffix}"
        stray = [name for name in after if name not in before and not name.startswith(("out/", "out."))]
        if stray and "--out" in case.words:
            return "wrote outside --out"
        if found := next((mark for mark in LIBRARIES if mark in err + out), None):
            return f"shows {found}"
        if status == 2 and not (err.strip() and len(err) <= MOST_CHARACTERS):
            return f"a mistake is answered with {len(err)} characters"
        if status == 0 and "--json" in case.words and "--help" not in case.words:
            try:
                json.loads(out, parse_constant=_no_number)
            except ValueError as error:
                return f"--json prints no JSON: {error}"[:80]
    return ""


def _run(words: list[str]) -> tuple[object, str, str, str]:
    out, err, status, raised = io.StringIO(), io.StringIO(), None, ""

    def endless(number, frame):
        raise Endless

    previous = signal.signal(signal.SIGVTALRM, endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            status = main(words)
    except SystemExit as stopped:
        status = stopped.code
    except BaseException as error:
        last = traceback.extract_tb(sys.exc_info()[2])[-1]
        raised = f"{type(error).__name__} at {'/'.join(Path(last.filename).parts[-2:])}:{last.name}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
    return status, out.getvalue(), err.getvalue(), raised


def _no_number(text):
    raise ValueError(f"it holds {text}")


def _hashes() -> dict[str, str]:
    here = Path()
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in here.rglob("*") if p.is_file()}


NUMBERS = ["0", "-1", "1", "3.5", "1e22", "1e400", "nan", "inf", "-0", "1e-300", "48M", "1,23", "1e18", "", "--", "x"]
NUMBERS += ["0x10", "1_000", "٣", "9" * 400, "\u2212" + "5", "true"]
NAMES = ["", "-", "--", "x" * 300, "é", "a\nb", "../x", "/dev/null", "/proc/self/mem", "chinchilla", "zhao", "all"]
NAMES += [
    "runs.csv",
    "fit.json",
    "$(touch owned)",
    "{}",
    "%s%n",
    "\udc80",
    "nul",
    "loss",
    "a=b",
    "=",
    ":",
    "~",
    ".",
    " ",
]
EXPRESSIONS = ["tokens.to_csv('owned')", "N=__import__('os').system('touch owned')", "loss=loss", "tokens > 0"]
EXPRESSIONS += ["tokens=9**9**9**9", "loss=log(tokens)", "tokens=`", "a=" + "(" * 400, "loss == 'x'", "x=y"]
CELLS = [
    "1e9",
    "3.2",
    "",
    "nan",
    "inf",
    "-1",
    "0",
    "48M",
    "=cmd|'/C calc'!A0",
    "<script>",
    '"',
    "1,5",
    "1e400",
    "é",
    "\0",
]
COLUMNS = [
    "params_active",
    "params_total",
    "tokens",
    "flops",
    "loss",
    "group",
    "model",
    "num_experts",
    "top_k",
    "config",
    "step",
    "lr",
    "run",
]

numbers, names = st.sampled_from(NUMBERS), st.sampled_from(NAMES)
words = st.one_of(numbers, names, st.text(st.characters(blacklist_categories=["Cs"], min_codepoint=1), max_size=8))


@st.composite
def mangled(draw, content: bytes) -> bytes:
    """What is left of a file after an accident or an edit."""
    how = draw(st.sampled_from(["whole", "cut", "flipped", "empty", "nulls", "utf-16", "latin-1", "twice", "edited"]))
    if not content:
        return content
    at = draw(st.integers(0, len(content) - 1))
    match how:
        case "cut":
            return content[:at]
        case "flipped":
            return content[:at] + bytes([content[at] ^ (1 << draw(st.integers(0, 7)))]) + content[at + 1 :]
        case "empty":
            return b""
        case "nulls":
            return b"\0" * len(content)
        case "utf-16":
            return content.decode("latin-1").encode("utf-16")
        case "latin-1":
            return content + "é".encode("latin-1")
        case "twice":
            return content * 2
        case "edited":
            old = draw(st.sampled_from([b"0", b"1", b"{", b"[", b'"', b":", b"null", b"loss", b"true"]))
            new = draw(st.sampled_from([b"NaN", b"-1", b"[]", b"{}", b"null", b'"x"', b"1e999", b"", b"Infinity"]))
            return content.replace(old, new, draw(st.integers(1, 3)))
    return content


@st.composite
def tables(draw) -> tuple[str, bytes]:
    """A name and the content of a table: too few rows to fit a law to."""
    kind = draw(st.sampled_from(["csv", "csv", "csv", "csv.gz", "jsonl", "parquet", "txt"]))
    columns = draw(st.lists(st.one_of(st.sampled_from(COLUMNS), names), min_size=1, max_size=6))
    rows = draw(st.lists(st.lists(st.sampled_from(CELLS), min_size=len(columns), max_size=len(columns)), max_size=3))
    between = draw(st.sampled_from([",", ",", ",", ";", "\t"]))
    if kind == "jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    else:
        lines = [between.join(line) for line in (columns, *rows)]
    content = "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    return f"runs.{kind}", draw(mangled(content))


CONFIG = b"""from ml_collections import ConfigDict
def get_config():
    config = ConfigDict()
    config.name = "small"
    config.architecture = dict(vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
                               num_experts=4, top_k=2, expert_hidden=16)
    config.recipe = dict(budgets_tokens=[4096], batch_tokens=512, data=dict(sequence_length=64))
    return config
"""
BROKEN = [b"import sys; sys.exit(0)", b"def get_config(): raise SystemExit", b"\xff\xfe", b"x = ", b"", b"\0", b"1/0"]
BROKEN += [b"def get_config(): return 1", b"get_config = 3", b"import nothing_like_it"]
SETTINGS = ["architecture.top_k", "architecture.model_dim", "recipe.batch_tokens", "recipe.seed", "name", "a.b", ""]


@st.composite
def cases(draw, stored: dict[str, bytes]) -> Case:
    """A hostile command; ``stored`` are the whole files of a study and of a fit, by name."""
    command = draw(st.sampled_from(list(COMMANDS)))
    return draw(STRATEGIES[command](command, stored))


@functools.cache
def _runs() -> bytes:
    return synthetic.runs(12).to_csv(index=False).encode()


WORKING = {
    "count": ["--config=c.py", "--config=c.py --config.architecture.top_k=1", "--arch mixtral-8x7b"],
    "design": ["--law chinchilla --flops 1e21", "--law chinchilla --flops 3e22 --out out"],
    # One start and one number of rows, so that what was compiled for the first serves them all.
    "fit": ["runs.csv --law hoffmann --starts 1", "runs.csv --law hoffmann --starts 1 --out out"],
    "init": ["out"],
    "launch": ["slurm --config=c.py --chip cpu --out out", "slurm --config=c.py --chip cpu --cores 2 --out out"],
    "laws": ["", "show zhao", "show chinchilla", "show abnar"],
    "plot": ["abnar-2 --format svg --out out", "runs --runs runs.csv --format svg --out out"],
    "predict": [
        "--law chinchilla --params-active {} --tokens {}",
        "--law effective_params --params-active 1e9 --params-total 8e9 --tokens {}",
        "--law fit.json --params-active 1e9 --params-total 8e9 --tokens {}",
    ],
    "ranges": ["", "kimi-k2 --tolerance 0.01", "--params-total {} --params-active 1e6"],
    "report": ["fit.json --out out"],
    "status": ["s", "s/models/dense-32", "s/models/dense-32 --verify", "s/models/dense-32 --layers"],
    "study": ["status s"],
}
"""Commands that do their work, so that what lies behind the first checks is reached too."""


@st.composite
def sound(draw, stored) -> Case:
    """A command that does its work, beside files that are not its own."""
    often = [command for command in WORKING if command not in ("plot", "report")]
    command = draw(st.sampled_from([*often, *often, "plot", "report"]))
    words = draw(st.sampled_from(WORKING[command]))
    words = words.format(*(draw(st.integers(10**6, 10**12)) for _ in range(words.count("{}")))).split()
    as_json = [] if command in ("init", "launch", "report") or not draw(st.booleans()) else ["--json"]
    mine = draw(st.sampled_from(["mine.txt", "é", "report.md", "config.py", "=x.csv"]))
    files = {mine: draw(st.binary(max_size=8)), "runs.csv": _runs(), "c.py": CONFIG} | dict(stored)
    return Case((command, *words, *as_json), files)


def _options(draw, given: dict[str, st.SearchStrategy[str]], most: int = 3) -> list[str]:
    chosen = draw(st.lists(st.sampled_from(list(given)), max_size=most))
    joined = draw(st.booleans())
    pairs = [(name, draw(given[name])) for name in chosen]
    return [word for name, value in pairs for word in ([f"{name}={value}"] if joined else [name, value])]


def _ends(draw) -> list[str]:
    return [*draw(st.sampled_from([[], ["--json"], ["--help"], ["--nonsense"], ["--json", "--json"]]))]


@st.composite
def on_a_table(draw, command, stored):
    name, content = draw(tables())
    laws = st.sampled_from(["chinchilla", "effective_params", "zhao", "nothing", ""])
    shared = {"--map": st.sampled_from(EXPRESSIONS), "--where": st.sampled_from(EXPRESSIONS), "--loss": names}
    shared |= {"--group": names, "--weight": names}
    own = {
        "fit": {"--bootstrap": numbers, "--fix": names, "--decide": names, "--hold-out": names, "--seed": numbers},
        "compare": {"--laws": laws, "--folds": numbers, "--hold-out": names},
        "next": {"--k": numbers, "--reach": numbers, "--candidates": st.sampled_from([name, "none.csv"])},
        "report": {"--laws": laws, "--resamples": numbers},
        "leverage": {"--flops": numbers, "--level": numbers},
        "plot": {"--format": names, "--estimand": names},
        "curves": {
            **dict.fromkeys(("--warmup", "--blocks", "--best", "--level"), numbers),
            **dict.fromkeys(("--predict", "--fix", "--only", "--hold-out"), names),
        },
    }[command]
    must = {
        "fit": [name, "--law", draw(laws)],
        "compare": [name],
        "next": [name, "--law", draw(laws), "--target", draw(names), "--flops", draw(numbers)],
        "report": [name],
        "leverage": [name, draw(st.sampled_from([name, f"{name}:tokens > 1", "x"]))],
        "plot": [draw(st.sampled_from(["starts", "nothing", "runs"])), "--runs", name],
        "curves": [name, "--law", draw(st.sampled_from(["multi_power", "momentum", "chinchilla", ""]))],
    }[command]
    out = ["--out", draw(st.sampled_from(["out", ".", name, f"{name}/below"]))] if command != "leverage" else []
    files = {name: content, "fit.json": b"mine", "report.md": b"mine", "compare.json": b"mine", "next.json": b"mine"}
    return Case((command, *must, *_options(draw, shared | own), *out, *_ends(draw)), files)


@st.composite
def of_a_law(draw, command, stored):
    law = st.sampled_from(["chinchilla", "zhao", "effective_params", "nothing", "", "fit.json", "x" * 300])
    sizes = {"--tokens": numbers, "--params-active": numbers, "--params-total": numbers, "--flops": numbers}
    own = {
        "predict": {**sizes, "--constants": names, "--arch": names, "--config": st.just("c.py")},
        "count": {"--arch": names, "--config": st.just("c.py"), "--sequence-length": numbers},
        "ranges": dict.fromkeys(("--params-total", "--params-active", "--gain", "--step"), numbers),
        "design": {"--mfu": numbers, "--hold": names, "--range": names, "--within": numbers, "--minimize": names},
    }[command]
    must = [] if command == "count" else ["--law", draw(law)]
    # A design of sound limits takes seconds to compile; of others, a sentence.
    must += ["--flops", draw(st.sampled_from(["nan", "-1", "0", "x", "1e400", ""]))] if command == "design" else []
    files = {"fit.json": draw(mangled(stored["fit.json"])), "c.py": draw(st.sampled_from([CONFIG, *BROKEN]))}
    return Case((command, *must, *_options(draw, own), *_ends(draw)), files)


@st.composite
def of_a_folder(draw, command, stored):
    victim = draw(st.sampled_from(sorted(stored)))
    files = {name: draw(mangled(content)) if name == victim else content for name, content in stored.items()}
    where = draw(st.sampled_from(["s", "s/models/dense-32", "s/study.json", "none", "x" * 300, "fit.json", "s/data"]))
    must = {
        "status": [where, *draw(st.sampled_from([[], ["--layers"], ["--verify"]]))],
        "sample": [where, *_options(draw, {"--tokens": numbers, "--top-p": numbers, "--tokenizer": names})],
        "convert": ["--to", draw(st.sampled_from(["hf", "weights", "x"])), where, "--out", "out"],
        "eval": [where, "--tasks", draw(names), "--out", "out.json"],
        "data": [draw(st.sampled_from(["show", "nothing"])), where],
        "report": [draw(st.sampled_from(["fit.json", "none", "s/study.json"])), "--out", "out"],
    }[command]
    return Case((command, *must, *_ends(draw)), files)


@st.composite
def of_a_config(draw, command, stored):
    files = {"c.py": draw(st.sampled_from(BROKEN)), "fit.json": b"mine"}
    config = draw(st.sampled_from(["c.py", "none.py", "x" * 300 + ".py", "c.py:argument", "."]))
    change = f"--config.{draw(st.sampled_from(SETTINGS))}={draw(words)}"
    before = {
        "train": _options(draw, {"--cpu-devices": numbers, "--process": numbers, "--profile": names}),
        "study": _options(draw, {"--workers": numbers, "--vmap": numbers, "--mfu": numbers}),
        "plan": ["--topology", draw(st.sampled_from(["cpu:8", "v5p", "cpu:1e18", "v5p:0x0x0", "", "h100:8"]))],
        "launch": [draw(st.sampled_from(["slurm", "gke", "sky", "nothing"]))],
    }[command]
    return Case((command, *before, f"--config={config}", change, "--out", "out", *_ends(draw)), files)


@st.composite
def of_words(draw, command, stored):
    given = {
        "laws": [draw(st.sampled_from(["show", "x"])), draw(words)],
        "cite": [draw(words)],
        "reproduce": ["--paper", draw(st.sampled_from(["nothing", "", "x" * 300])), "--json", "mine.json"],
        "explore": [draw(st.sampled_from(["none", "none.json"])), "--export", draw(st.sampled_from(["", "gs://x"]))],
        "init": [draw(st.sampled_from(["out", "mine.json", "mine.json/below", "x" * 300]))],
    }[command]
    return Case((command, *given, *_ends(draw)), {"mine.json": b"mine"})


STRATEGIES = {
    **dict.fromkeys(("fit", "compare", "next", "leverage", "plot", "curves"), on_a_table),
    **dict.fromkeys(("predict", "count", "design", "ranges"), of_a_law),
    **dict.fromkeys(("status", "sample", "convert", "eval", "data"), of_a_folder),
    **dict.fromkeys(("train", "study", "plan", "launch"), of_a_config),
    **dict.fromkeys(("laws", "cite", "reproduce", "explore", "init"), of_words),
    "report": lambda command, stored: st.one_of(on_a_table(command, stored), of_a_folder(command, stored)),
}
