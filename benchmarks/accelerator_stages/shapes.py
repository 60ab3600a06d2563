"""Define shapes of published MoE models, expert loads, and the kernels available on this platform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from dispatch import Size, draw_routing

from accelerator_stages.cases import LeftOut
from moejax.kernels.platform import platform
from moejax.kernels.table import TABLE, accepts
from moejax.laws.catalogue import CATALOGUE

MODELS = ("olmoe-1b-7b", "qwen3-30b-a3b", "deepseek-v3.1")
TOKENS = 8192


class Experts(NamedTuple):
    """A layer's experts and its number of tokens."""

    model: str
    tokens: int
    top_k: int
    experts: int
    width: int
    hidden: int

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k

    def products(self) -> dict[str, tuple[int, int]]:
        """Return the input and output widths of both matmuls: gate and up in one matrix, as in transformers, and
        down.
        """
        return {"gate_up": (self.width, 2 * self.hidden), "down": (self.hidden, self.width)}


def experts(is_dry: bool) -> list[Experts]:
    """Return the experts of models in the catalogue, or one small shape for a rehearsal."""
    found = []
    for name in MODELS[:1] if is_dry else MODELS:
        a = CATALOGUE[name].architecture
        full = Experts(name, TOKENS, int(a.top_k), int(a.num_experts), int(a.model_dim), int(a.expert_hidden))
        found.append(full._replace(tokens=32, top_k=2, experts=4, width=32, hidden=16) if is_dry else full)
    return found


def group_sizes(of: Experts, load: str, seed: int) -> np.ndarray:
    """Return Int32[experts], the rows of each expert under a load: ``balanced``, ``zipf``, ``one has all``, ``half are
    empty``.
    """
    if load == "zipf":
        generator = np.random.default_rng(seed)
        routing = draw_routing(Size(of.tokens, of.top_k, of.width, of.hidden, of.experts, "zipf"), generator)
        return np.bincount(np.asarray(routing.expert), minlength=of.experts).astype(np.int32)
    chosen = {
        "balanced": range(of.experts),
        "half are empty": range(1, of.experts, 2),
        "one has all": [of.experts // 2],
    }
    sizes = np.zeros(of.experts, np.int32)
    for number, part in enumerate(np.array_split(np.arange(of.rows), len(chosen[load]))):
        sizes[chosen[load][number]] = len(part)
    return sizes


def kernels(operation: str, *, reference: bool = False) -> list[str]:
    """Return the names of this accelerator's and plain JAX's kernels, installed or not; the reference only on
    request.
    """
    here = {platform(), "any"} - {"cpu"}
    return [n for n, k in TABLE[operation].items() if k.platform in here and (reference or n != "reference")]


def check_accepts(operation: str, name: str, *arguments: Any, **options: Any) -> None:
    """Raise ``LeftOut`` with the reason if the kernel cannot compute a case here."""
    if not TABLE[operation][name].is_available():
        raise LeftOut(f"what the kernel {name} needs is not installed")
    if not accepts(operation, name, *arguments, **options):
        raise LeftOut(f"the kernel {name} does not take these arguments")


@contextmanager
def only(operation: str, name: str) -> Iterator[None]:
    """Make programs traced in this context use this kernel, or fail if it does not accept the arguments."""
    others = {n: k._replace(is_default=n == name) for n, k in TABLE[operation].items()}
    with mock.patch.dict(TABLE[operation], others):
        yield
