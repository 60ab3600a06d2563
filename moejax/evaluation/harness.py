"""Evaluate moejax models with lm-evaluation-harness (EleutherAI) through its Python API.

Text is tokenized as in the harness's own adapter for Hugging Face models, so that results are comparable. A context
and its continuation are tokenized together and split after the number of tokens that the context has by itself. Opening
tokens (``Tokenizer.opening``) precede them. Rolling likelihoods score only the text's own tokens, after one opening
token.
"""

# Where lm_eval's annotations contradict its behavior, this module uses ``Any``.

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import yaml

import moejax
from moejax.data.tokenizer import Tokenizer, prompt_tokens
from moejax.errors import UserError
from moejax.evaluation.language_model import LanguageModel
from moejax.model.generate import Sampling
from moejax.say import ProgressCallback
from moejax.wording import did_you_mean, nearest, says

# The harness and its dependencies draw their own progress bars. The harness also computes bootstrap resamples in forked
# processes, which lack the threads that JAX needs.
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ["DISABLE_MULTIPROC"] = "1"

from lm_eval import evaluator, simple_evaluate  # type: ignore[import-not-found]
from lm_eval.api.model import TemplateLM  # type: ignore[import-not-found]
from lm_eval.models.utils import (  # type: ignore[import-not-found]
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]
from lm_eval.utils import (  # type: ignore[import-not-found]
    get_rolling_token_windows,
    make_disjoint_window,
)

# The harness asks git for the commit of the current folder, which is not used here. Outside a repository, git would
# print an error.
evaluator.get_git_commit_hash = lambda: None

DEFAULT_NEW_TOKENS = 256
"""Number of generated tokens if the task does not specify a number. The harness has the same default."""
RESAMPLES = 1_000
"""Number of bootstrap resamples of the documents, for metrics whose standard error has no formula."""


class HarnessModel(TemplateLM):
    """A moejax model with the harness's interface."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        first_token: int | None = None,
        max_new_tokens: int | None = None,
        seed: int = 0,
        update: ProgressCallback = lambda share, text: None,
    ):
        super().__init__()
        model.check()
        self._model, self._tokenizer, self._update = model, tokenizer, update
        self._first_token, self._key = first_token, jax.random.key(seed)
        self._max_new_tokens = max_new_tokens
        self.answers: dict[str, list[tuple[int, int]]] = {}
        """Number of words and of tokens of each generated answer, keyed by task, in the order of the requests."""

    @property
    def max_length(self) -> int:
        """Return the maximum number of tokens of a context and its continuation."""
        return self._model.longest

    @property
    def eot_token_id(self) -> int:
        """Return the end-of-document token."""
        return self._tokenizer.end_of_document

    @property
    def prefix_token_id(self) -> int:
        """Return the token that replaces an empty context and opens a whole text."""
        if self._first_token is not None:
            return self._first_token
        return self._tokenizer.opening[0] if self._tokenizer.opening else self.eot_token_id

    def _prompt(self, text: str) -> list[int]:
        tokens = prompt_tokens(self._tokenizer, text.encode(), self._first_token)
        assert tokens is not None, "a Python string is UTF-8"
        return tokens

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, including its opening tokens unless ``add_special_tokens`` is False."""
        tokens = self._tokenizer.encode([string.encode()])[0]
        assert tokens is not None, "a Python string is UTF-8"
        return [*(() if add_special_tokens is False else self._tokenizer.opening), *tokens.tolist()]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and whether greedy decoding would produce
        it.
        """
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        likelihoods = self._model.log_likelihoods(pairs, self._progress("likelihoods"))
        return [(likelihood.log, likelihood.greedy) for likelihood in likelihoods]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Return the log-likelihood of whole texts. Each token is scored once, with as much preceding context as fits
        in its window.
        """
        texts = [self._windows(request.args[0]) for request in requests]
        pairs = [pair for text in texts for pair in text]
        likelihoods = iter(self._model.log_likelihoods(pairs, self._progress("windows")))
        return [sum(next(likelihoods).log for _ in text) for text in texts]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Return each context's continuation up to the end of the document or the first ``until`` string of the
        task."""
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(i)
        answers = [""] * len(requests)
        for items in alike.values():
            texts = self._generate([requests[i].args[0] for i in items], requests[items[0]].args[1])
            for i, text in zip(items, texts, strict=True):
                answers[i] = text
        for request, text in zip(requests, answers, strict=True):
            lengths = len(text.split()), len(self.tok_encode(text, add_special_tokens=False))
            self.answers.setdefault(str(request.task_name), []).append(lengths)
        return answers

    def _generate(self, contexts: list[str], asked: dict[str, Any]) -> list[str]:
        options: dict[str, Any] = dict(normalize_gen_kwargs(asked, DEFAULT_NEW_TOKENS))
        tokens, until = options.pop("max_gen_toks"), [stop for stop in options.pop("until") if stop]
        tokens = tokens if self._max_new_tokens is None else min(tokens, self._max_new_tokens)
        sampling = _sampling(options)

        def text(row: np.ndarray) -> tuple[str, bool]:
            ends = (row == self.eot_token_id).nonzero()[0]
            whole = self._tokenizer.decode(row[: ends[0]] if len(ends) else row)
            return postprocess_generated_text(whole, until, None), bool(len(ends)) or any(s in whole for s in until)

        self._key, key = jax.random.split(self._key)
        rows = self._model.continuations(
            [self._prompt(context) for context in contexts],
            tokens=tokens,
            enough=lambda row: text(row)[1],
            sampling=sampling,
            key=key,
            progress=self._progress("continuations"),
        )
        return [text(row)[0] for row in rows]

    def _progress(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._update(done / total, f"{done:,} of {total:,} {what}")


def answer_lengths(lengths: Iterable[tuple[int, int]]) -> dict[str, float | None]:
    """Return the ``number`` of answers and their mean lengths in ``words`` and ``tokens``, keyed by these names."""
    every = list(lengths)
    words, tokens = (statistics.mean(column) for column in zip(*every, strict=True)) if every else (None, None)
    return {"number": len(every), "words": words, "tokens": tokens}


_KNOWN = ("do_sample", "temperature", "top_p", "top_k")
_OFF = {"num_beams": 1, "repetition_penalty": 1}
"""Generation options that some tasks set to the value that has no effect, and this value."""


def _sampling(options: dict[str, Any]) -> Sampling:
    for name, value in options.items():
        if name not in _KNOWN and not (name in _OFF and value == _OFF[name]):
            raise UserError(
                f"The task generates with {name} = {value!r}, which is not supported; supported options are until, "
                f"max_gen_toks, {', '.join(_KNOWN)}. Copy the task without this option and pass its folder as "
                "--task-path."
            )
    if not options["do_sample"]:
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=float(options.get("temperature", 1.0)),
        top_k=int(options.get("top_k") or 0),
        top_p=float(options.get("top_p") or 1.0),
    )


LOCAL = ("arrow", "csv", "json", "parquet", "text")
"""File formats of ``datasets``. A task with such a format as its ``dataset_path`` reads local files instead of a data
set on the Hub.
"""


def load_tasks(
    names: Sequence[str], folder: Path | None = None, others: Sequence[str] = (), option: str = "--task-path"
) -> tuple[TaskManager, list[Any]]:
    """Load tasks and groups by name or pattern. Task files in ``folder`` take precedence over the harness's own.

    Args:
      others: further names that an error may suggest for a misspelt one.
      option: name of the option that gives ``folder``.

    Raises:
      UserError: the folder or a task does not exist, or the task or its data cannot be read.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if folder is not None and not folder.is_dir():
        raise UserError(f"There is no folder {folder}; pass a folder with task files (*.yaml).")
    manager = TaskManager(include_path=folder, include_defaults=False)
    if not set(names) <= set(manager.all_subtasks):
        # Index all tasks of the harness only if needed, because this reads ten thousand files.
        manager = TaskManager(include_path=folder)
    loaded: dict[str, Any] = {}
    for name in names:
        matched = manager.match_tasks([name])
        if not matched:
            raise UserError(" ".join([_unknown(name, [*others, *manager.all_tasks], folder, option), *_broken(folder)]))
        for one in matched:
            loaded |= _load(manager, one, option)
    return manager, list(loaded.values())


def _unknown(name: str, known: Sequence[str], folder: Path | None, option: str) -> str:
    """Return the sentence for an unknown task; the harness has too many tasks to list."""
    hint = did_you_mean(name, known) if nearest(name, known) else "lm-eval ls tasks lists the harness's tasks."
    own = "" if folder else f" If it is your own, pass the folder of its task file ({option} FOLDER)."
    return f"Task {name} is unknown; {hint}{own}"


def _broken(folder: Path | None) -> list[str]:
    """Return messages about task files in the folder that are not YAML, which the harness silently skips."""
    messages = []
    for path in [] if folder is None else sorted(folder.rglob("*.yaml")):
        try:
            # Compose the YAML without loading it, because the harness has its own tags.
            yaml.compose(path.read_text("utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            messages.append(f"{path} cannot be read ({says('yaml', error)}).")
    return messages


def _load(manager: TaskManager, name: str, option: str) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded = manager.load([name])
    # The exception for a missing network, package or file differs between versions and libraries.
    except Exception as error:
        data = (manager.task_index[name].cfg or {}).get("dataset_path")
        remedy = (
            "Install the missing package."
            if isinstance(error, ImportError)
            else "Copy the files that its task file names (data_files) to this machine."
            if data in LOCAL
            else f"Its data set is {data or 'named in its task files'}. Check that this machine can reach the Hugging "
            f"Face Hub. Without a network, load the task on another machine and copy the folder HF_HOME, or pass a "
            f"task with local files ({option})."
        )
        raise UserError(
            f"Task {name} could not be loaded ({says('lm-evaluation-harness', error)}). {remedy}"
        ) from error
    groups = loaded.get("groups", {})
    return {name: groups[name]} if name in groups else dict(loaded["tasks"])


def evaluate(
    model: HarnessModel,
    manager: TaskManager,
    tasks: Sequence[Any],
    *,
    limit: int | None = None,
    num_fewshot: int | None = None,
    log_samples: bool = False,
) -> dict[str, Any]:
    """Evaluate tasks and return a dict with keys of the harness: results, groups, versions, configs and counts.

    Raises:
      UserError: a task runs code that the model writes, or contains images.
    """
    for task in tasks:
        for part in task.get_all_tasks() if hasattr(task, "get_all_tasks") else [task]:
            _check(part)
    with contextlib.redirect_stdout(sys.stderr):
        # The harness's decorator hides the signature.
        evaluated = cast(Any, simple_evaluate)(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            num_fewshot=num_fewshot,
            bootstrap_iters=RESAMPLES,
            log_samples=log_samples,
        )
    names = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better", "configs", "samples")
    return {name: evaluated[name] for name in names if name in evaluated}


def _check(task: Any) -> None:
    for attribute, what in (("UNSAFE_CODE", "runs code that the model writes"), ("MULTIMODAL", "contains images")):
        if getattr(task, attribute, False):
            raise UserError(f"Task {task.task_name} {what}, which moejax eval does not support; remove the task.")


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect the results, keyed by package."""
    packages = ("lm-eval", "datasets", "tokenizers", "jax", "jaxlib", "numpy")
    return {
        "moejax": moejax.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
