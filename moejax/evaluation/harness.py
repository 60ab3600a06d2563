"""lm-evaluation-harness (EleutherAI) on a model of ours, through its Python API.

Text becomes tokens as in the harness's own adapter of Hugging Face models, so that numbers can be compared: a context
and its continuation are tokenised together and parted at the context's own number of tokens, after the tokens that open
a text (``Tokenizer.opening``). Of a whole text, only its own tokens are scored, after one token that opens it.
"""

# Where lm_eval is installed, its annotations contradict what its own adapters and evaluator do.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportOptionalSubscript=false, reportTypedDictNotRequiredAccess=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import yaml

import moejax
from moejax.config import unknown
from moejax.data.tokenizer import Tokenizer, prompt_tokens
from moejax.errors import UserError
from moejax.evaluation.language_model import LanguageModel
from moejax.model.generate import Sampling
from moejax.progress import ProgressCallback
from moejax.wording import says

# The harness and what it loads draw bars of their own, and it resamples in forks of this process, whose threads JAX
# needs and a fork does not have.
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ["DISABLE_MULTIPROC"] = "1"

from lm_eval import simple_evaluate  # type: ignore[import-not-found]
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

DEFAULT_LENGTH = 2048
"""Tokens of a text at most, for a model of which nothing better is known; the harness's own."""
DEFAULT_NEW_TOKENS = 256
"""What is generated for a task that does not say how much; the harness's own."""
RESAMPLES = 1_000
"""Of the documents, for standard errors that have no formula."""


class HarnessModel(TemplateLM):
    """Our model as the harness asks it."""

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
        """By task, words and tokens of every answer that was generated for it, in the order of its requests."""

    @property
    def max_length(self) -> int:
        """Tokens of a context and its continuation."""
        return self._model.longest

    @property
    def eot_token_id(self) -> int:
        """What ends a document."""
        return self._tokenizer.end_of_document

    @property
    def prefix_token_id(self) -> int:
        """The token that stands for an empty context and opens a whole text."""
        if self._first_token is not None:
            return self._first_token
        return self._tokenizer.opening[0] if self._tokenizer.opening else self.eot_token_id

    def _prompt(self, text: str) -> list[int]:
        tokens = prompt_tokens(self._tokenizer, text.encode(), self._first_token)
        assert tokens is not None, "a Python string is UTF-8"
        return tokens

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, after those that open it unless told not to."""
        tokens = self._tokenizer.encode([string.encode()])[0]
        assert tokens is not None, "a Python string is UTF-8"
        return [*(() if add_special_tokens is False else self._tokenizer.opening), *tokens.tolist()]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Of each continuation after its context, and whether it is the greedy one."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        found = self._model.log_likelihoods(pairs, self._progress("likelihoods"))
        return [(likelihood.log, likelihood.greedy) for likelihood in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Score whole texts: each of their tokens once, after as many as fit before its window."""
        texts = [self._windows(request.args[0]) for request in requests]
        every = self._model.log_likelihoods([pair for text in texts for pair in text], self._progress("windows"))
        found = iter(every)
        return [sum(next(found).log for _ in text) for text in texts]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = get_rolling_token_windows(
            self.tok_encode(text, add_special_tokens=False),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Each context's continuation, to the end of the document or the first of the task's ``until``."""
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(i)
        found = [""] * len(requests)
        for items in alike.values():
            texts = self._generate([requests[i].args[0] for i in items], requests[items[0]].args[1])
            for i, text in zip(items, texts, strict=True):
                found[i] = text
        for request, text in zip(requests, found, strict=True):
            lengths = len(text.split()), len(self.tok_encode(text, add_special_tokens=False))
            self.answers.setdefault(str(request.task_name), []).append(lengths)
        return found

    def _generate(self, contexts: list[str], asked: dict[str, Any]) -> list[str]:
        options = dict(normalize_gen_kwargs(asked, DEFAULT_NEW_TOKENS))
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


_KNOWN = ("do_sample", "temperature", "top_p", "top_k")
_OFF = {"num_beams": 1, "repetition_penalty": 1}
"""Options that some tasks set to what changes nothing."""


def _sampling(options: dict[str, Any]) -> Sampling:
    """How the harness wants tokens drawn."""
    for name, value in options.items():
        if name not in _KNOWN and not (name in _OFF and value == _OFF[name]):
            raise UserError(
                f"The task generates with {name} = {value!r}, which moejax does not do; it knows until, "
                f"max_gen_toks, {', '.join(_KNOWN)}. Write the task anew without it (--task-path)."
            )
    if not options["do_sample"]:
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=float(options.get("temperature", 1.0)),
        top_k=int(options.get("top_k") or 0),
        top_p=float(options.get("top_p") or 1.0),
    )


LOCAL = ("arrow", "csv", "json", "parquet", "text")
"""What ``datasets`` reads from files: as the data of a task no name on the Hub."""


def load_tasks(
    names: Sequence[str], folder: Path | None = None, others: Sequence[str] = ()
) -> tuple[TaskManager, list[Any]]:
    """Tasks and groups by name or pattern, those of a folder's task files before the harness's own.

    ``others`` are names that could have been meant besides.

    Raises:
      UserError: there is no such folder or task, or it or its data cannot be read.
    """
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder}, to be read for task files, is no folder; give one that holds them (*.yaml).")
    manager = TaskManager(include_path=folder, include_defaults=False)
    if not set(names) <= set(manager.all_subtasks):
        # Ten thousand files are read for these.
        manager = TaskManager(include_path=folder)
    found: dict[str, Any] = {}
    for name in names:
        matched = manager.match_tasks([name])
        if not matched:
            raise UserError(" ".join([unknown(f"Task {name}", name, [*others, *manager.all_tasks]), *_broken(folder)]))
        for one in matched:
            found |= _load(manager, one)
    return manager, list(found.values())


def _broken(folder: Path | None) -> list[str]:
    """Sentences on the task files of a folder that are no YAML, which the harness passes over."""
    found = []
    for path in [] if folder is None else sorted(folder.rglob("*.yaml")):
        try:
            # Composed and not loaded: the harness has tags of its own.
            yaml.compose(path.read_text("utf-8"))
        except (yaml.YAMLError, ValueError) as error:
            found.append(f"{path} cannot be read ({says('yaml', error)}).")
    return found


def _load(manager: TaskManager, name: str) -> dict[str, Any]:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded = manager.load([name])
    # What is raised where there is no network, no package or no file differs between versions and libraries.
    except Exception as error:
        data = (manager.task_index[name].cfg or {}).get("dataset_path")
        remedy = (
            "Install what is missing."
            if isinstance(error, ImportError)
            else "Its data are the files that its task file names (data_files), as seen from here; bring them."
            if data in LOCAL
            else f"Its data is {data or 'named in its task files'}: does this machine reach the Hugging Face Hub? "
            f"Without a network, load the task once on a machine that does and bring its folder HF_HOME here, or write "
            f"a task with local files (--task-path)."
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
    """What the harness finds, with its own names: results, groups, task versions, configurations, numbers of documents.

    Raises:
      UserError: a task runs code that the model writes, or shows it pictures.
    """
    for task in tasks:
        for part in task.get_all_tasks() if hasattr(task, "get_all_tasks") else [task]:
            _check(part)
    # It asks git which repository this folder is, which is not kept here, and git complains where it is none.
    unasked = mock.patch("lm_eval.evaluator.get_git_commit_hash", return_value=None, create=True)
    with contextlib.redirect_stdout(sys.stderr), unasked:
        found = simple_evaluate(
            model=model,
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            num_fewshot=num_fewshot,
            bootstrap_iters=RESAMPLES,
            log_samples=log_samples,
        )
    names = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better", "configs", "samples")
    return {name: found[name] for name in names if name in found}


def _check(task: Any) -> None:
    for attribute, what in (("UNSAFE_CODE", "runs code that the model writes"), ("MULTIMODAL", "shows pictures")):
        if getattr(task, attribute, False):
            raise UserError(f"Task {task.task_name} {what}, which moejax eval does not do; leave it out.")


def versions() -> dict[str, str]:
    """Of what decides the numbers."""
    packages = ("lm-eval", "datasets", "tokenizers", "jax", "jaxlib", "numpy")
    return {
        "moejax": moejax.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }
