"""Evaluate a model's loss on text, as training evaluates the loss on its validation text."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from moejax.data.config import DataConfig
from moejax.data.corpus import joined
from moejax.data.prepare import prepare
from moejax.data.rows import CompleteWindows, Packed, Validation, chosen
from moejax.data.sources import skipped
from moejax.data.tokenizer import Tokenizer
from moejax.errors import UserError
from moejax.evaluation.load_model import DEFAULT_LENGTH, LoadedModel, fingerprint, load_with_tokenizer
from moejax.model.runtime import Runtime
from moejax.result import Column, Result, Table
from moejax.say import ProgressCallback, say
from moejax.train.evaluation import Evaluated, evaluate
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.program import make_program
from moejax.train.training import Recipe, Training
from moejax.wording import counted, some, told


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """Settings of ``moejax eval --text``."""

    text: tuple[str, ...]
    text_field: str
    max_length: int | None
    batch_tokens: int
    dtype: str | None
    tokenizer: str | None


def text_losses(path: Path, settings: TextSettings, update: ProgressCallback) -> dict[str, Any]:
    """Evaluate the loss on each file or folder of text, and return the results as plain data.

    All tokens of a text except its first are predicted. Rows are cut as in the training run, by default as windows of
    the running text, in which the end-of-document token separates documents.

    Raises:
      UserError: the model or a text cannot be read, or a text has fewer than two tokens.
    """
    update(0.0, "reading weights")
    model, tokenizer = load_with_tokenizer(path, settings.tokenizer)
    mesh = make_mesh(MeshShape(), jax.local_devices())
    training = _evaluation(model, settings, mesh.size)
    packing = model.training.recipe.data.packing if model.training else DataConfig.packing
    rows = _rows(tokenizer, packing, training.recipe.data, settings, update)
    update(0.0, f"evaluating {rows.targets:,} tokens")
    program = make_program(training, mesh)
    # Every device holds all weights, and evaluates a part of each batch.
    params = jax.device_put(model.weights.params, program.shardings.params)
    expert_bias = jax.device_put(model.weights.expert_bias, program.shardings.expert_bias)
    evaluated = evaluate(program, params, expert_bias, rows)
    return {
        "model": {"path": str(path), **model.origin, "fingerprint": fingerprint(model.weights)},
        "tokenizer": {"name": Path(tokenizer.name).name, "sha256": tokenizer.sha256},
        "settings": {
            "sequence_length": training.recipe.data.sequence_length,
            "packing": packing,
            "dtype": training.recipe.runtime.compute_dtype,
        },
        "texts": _by_text(evaluated),
    }


def _evaluation(model: LoadedModel, settings: TextSettings, devices: int) -> Training:
    """Return a training run whose evaluation has the model's rows and type of computation."""
    recipe = model.training.recipe if model.training else None
    length = settings.max_length or model.sequence_length or DEFAULT_LENGTH
    dtype = settings.dtype or (recipe.runtime.compute_dtype if recipe else "float32")
    batch = devices * max(1, settings.batch_tokens // length) * length
    # Experts with a capacity are evaluated in groups of as many tokens as in the training run.
    data = DataConfig(
        sequence_length=length,
        # Rows have segments, which also mark padding.
        packing="documents",
        validation_tokens=max(length, recipe.data.validation_tokens if recipe else DataConfig.validation_tokens),
        corrupt_share=recipe.data.corrupt_share if recipe else DataConfig.corrupt_share,
    )
    data.check()
    quantization = recipe.runtime.matmul_quantization if recipe else "none"
    runtime = Runtime(compute_dtype=dtype, matmul_quantization=quantization)
    recipe = Recipe(budgets_tokens=(batch,), batch_tokens=batch, data=data, runtime=runtime)
    return Training(name="evaluation", architecture=model.weights.architecture, recipe=recipe)


def _rows(
    tokenizer: Tokenizer, packing: str, data: DataConfig, settings: TextSettings, update: ProgressCallback
) -> Validation:
    """Tokenize the texts, and cut them into rows of ``data.sequence_length``.

    Raises:
      UserError: texts cannot be read, or have fewer than two tokens. The message names all of them.
    """
    parts, problems = [], []
    cut = Packed if packing == "documents" else CompleteWindows
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(settings.text):
            try:
                if left_out := str(skipped(text) or ""):
                    say(f"{text}: {left_out}")
                prepared = prepare(
                    text,
                    Path(folder) / str(number),
                    tokenizer=tokenizer,
                    validation_share=1.0,
                    corrupt_share=data.corrupt_share,
                    text_field=settings.text_field,
                    update=update,
                )
                rows = cut(prepared.split("validation"), data.sequence_length)
                if not len(rows):
                    raise UserError(f"{text} has fewer than two tokens, so nothing can be predicted; give more text.")
            except UserError as error:
                problems.append(error)
                continue
            if (corrupt := prepared.manifest.corrupt).records:
                say(f"{text}: {counted(corrupt.records, 'corrupt record')} skipped: {some(corrupt.named)}")
            parts.append((text, prepared, chosen(rows, len(rows)), True))
        if len(problems) > 1:
            reasons = some([told(error).rstrip(".") for error in problems], most=10, between="; ")
            raise UserError(f"{len(problems)} of {len(settings.text)} texts cannot be evaluated: {reasons}.")
        if problems:
            raise problems[0]
        return joined(parts)


def _by_text(evaluated: Evaluated) -> list[dict[str, Any]]:
    return [
        {
            "text": part.name,
            **losses,
            "tokens": part.targets,
            "bytes": None if part.bytes is None else round(part.bytes),
        }
        for part, losses in zip(evaluated.validation.parts, evaluated.losses_by_source(), strict=True)
    ]


def summary(results: dict[str, Any], path: Path) -> Result:
    """Return a table of the losses of each text."""
    columns = (
        Column("text", value="text"),
        Column("loss", ".4f", unit="nats/token", value="loss"),
        Column("bits per byte", ".4f", value="bits_per_byte"),
        Column("tokens", ",", value="tokens"),
        Column("bytes", ",", value="bytes"),
    )
    return Result(
        tables=[Table.of(f"{path}, {results['model']['fingerprint']}", columns, results["texts"])], data=results
    )
