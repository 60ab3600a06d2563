"""Time each law on a million designs: compile once, then take the best of five calls.

    python benchmarks/laws.py

Prints seconds per law, and exits with 1 if any takes a second or more.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import Design

DESIGNS = 1_000_000


def designs(key: jax.Array) -> Design:
    """Return a million random MoE designs."""
    keys = iter(jax.random.split(key, 10))

    def between(low: float, high: float) -> jax.Array:
        return jnp.exp(jax.random.uniform(next(keys), (DESIGNS,), minval=jnp.log(low), maxval=jnp.log(high)))

    active, top_k, width = between(1e8, 1e11), between(1, 16), between(512, 8192)
    return Design(
        params_total=active * between(1, 40),
        params_active=active,
        tokens=between(1e9, 1e13),
        unique_tokens=between(1e9, 1e13),
        flops=between(1e18, 1e26),
        num_experts=top_k * between(1, 40),
        top_k=top_k,
        num_shared_experts=jnp.ones(DESIGNS),
        model_dim=width,
        num_layers=jnp.full(DESIGNS, 32.0),
        expert_hidden=width / 8,
        columns={"loss": between(1, 5)},
    )


def seconds(law: Any, points: Design) -> float:
    """Return the wall seconds of a compiled call on all designs, the best of five."""
    batched = jax.jit(jax.vmap(law))
    jax.block_until_ready(batched(points))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(batched(points))
        times.append(time.perf_counter() - start)
    return min(times)


def example(name: str) -> Any:
    """Return the law with its default constants, or with arbitrary constants if none are published."""
    for entry in PUBLISHED[name].values():
        return entry.law
    made_up = {"+": 0.3, "-": -0.3, "any": 0.1}
    fields = {f.name: made_up[f.metadata["sign"]] for f in dataclasses.fields(LAWS[name]) if "sign" in f.metadata}
    powers = {"size": (0.1, 0.1), "sparsity": (0.1, 0.1), "interaction": (0.1, 0.1)}
    return LAWS[name](**{field: powers.get(field, value) for field, value in fields.items()})


def main() -> int:
    """Time every law."""
    points = designs(jax.random.key(0))
    times = {name: seconds(example(name), points) for name in LAWS}
    for name, took in times.items():
        print(f"{name:18} {took:.4f} s")
    slowest = max(times.values())
    print(f"slowest: {slowest:.4f} s for {DESIGNS:,} designs on {jax.devices()[0].platform}")
    return int(slowest >= 1)


if __name__ == "__main__":
    sys.exit(main())
