"""Speed of the dispatchers, side by side in one run, as a share of the speed of one matrix product of the same FLOPs.

Run on one core, as a device of a data-parallel CPU run has:

    taskset -c 0 python benchmarks/dispatch.py                        # the sizes of the quickstart and of the papers
    taskset -c 0 python benchmarks/dispatch.py --sizes quickstart --rounds 20

A row is one layer's experts: forward alone, and forward with backward (gradients of tokens, gates and weights). The
yardstick is X·W and its two gradients with X [tokens·top_k, D] and W [D, 3F], the FLOPs of that many rows through one
SwiGLU expert. Rounds of all dispatchers alternate, and medians are compared, as a shared machine is noisy.
"""

import argparse
import statistics
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moejax.routing import DISPATCHERS, Experts
from moejax.routing.routing import Routing, token_choice


class Size(NamedTuple):
    tokens: int
    top_k: int
    model: int
    hidden: int
    experts: int
    load: str = "balanced"


SIZES = {
    "quickstart": [
        Size(1024, 1, 32, 32, 4),
        Size(1024, 2, 32, 32, 16),
        Size(2048, 2, 64, 64, 8),
        Size(2048, 2, 64, 64, 16),
        Size(2048, 4, 128, 64, 16),
        Size(4096, 2, 128, 128, 8),
    ],
    "reference": [
        Size(4096, 2, 256, 256, 16),
        Size(4096, 2, 256, 256, 64),
        Size(4096, 2, 256, 256, 64, "zipf"),
    ],
    "large": [
        Size(4096, 2, 256, 256, 256),
        Size(4096, 2, 256, 1024, 64),
    ],
}


def draw_routing(size: Size, generator: np.random.Generator) -> Routing:
    """Different experts for each token, all as likely or with the probabilities 1/rank of Zipf's law."""
    weight = np.ones(size.experts) if size.load == "balanced" else 1.0 / np.arange(1, size.experts + 1)
    # The largest of log-weight + Gumbel noise are a draw without replacement.
    noise = generator.gumbel(size=(size.tokens, size.experts)) + np.log(weight)
    expert = jnp.asarray(np.argsort(-noise, axis=1)[:, : size.top_k], jnp.int32)
    logits = jnp.zeros((size.tokens, size.experts))
    return token_choice(logits, logits, expert, jnp.full(expert.shape, 1.0 / size.top_k))


def programs(size: Size, dispatchers: list[str]) -> dict[str, tuple]:
    """For each name a forward program, a program of value and gradients, and their arguments."""
    generator = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(generator.standard_normal(shape), jnp.float32) * 0.1

    routing = draw_routing(size, generator)
    x, dy = normal(size.tokens, size.model), normal(size.tokens, size.model)
    weights = [normal(size.experts, *shape) for shape in [(size.model, size.hidden)] * 2 + [(size.hidden, size.model)]]

    def of(dispatch):
        def forward(x, gate, weights):
            return dispatch(x, Routing(**{**vars(routing), "gate": gate}), Experts(*weights))

        def both(x, gate, weights, dy):
            y, back = jax.vjp(forward, x, gate, weights)
            return y, back(dy)

        return jax.jit(forward), jax.jit(both), (x, routing.gate, weights), dy

    def product(x, w):
        return x @ w

    def product_both(x, w, dy):
        y, back = jax.vjp(product, x, w)
        return y, back(dy)

    rows, columns = size.tokens * size.top_k, 3 * size.hidden
    yardstick = (
        jax.jit(product),
        jax.jit(product_both),
        (normal(rows, size.model), normal(size.model, columns)),
        normal(rows, columns),
    )
    return {"product": yardstick} | {name: of(DISPATCHERS[name]) for name in dispatchers}


def seconds(program, *arguments) -> float:
    start = time.perf_counter()
    jax.block_until_ready(program(*arguments))
    return time.perf_counter() - start


def measure(size: Size, dispatchers: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds of forward, and of forward with backward, by name."""
    made = programs(size, dispatchers)
    times = {name: ([], []) for name in made}
    for turn in range(rounds + 2):
        for name, (forward, both, arguments, dy) in made.items():
            pair = seconds(forward, *arguments), seconds(both, *arguments, dy)
            if turn >= 2:
                for series, value in zip(times[name], pair, strict=True):
                    series.append(value)
    return {name: (statistics.median(f), statistics.median(b)) for name, (f, b) in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=["quickstart", "reference"])
    parser.add_argument("--dispatchers", choices=DISPATCHERS, nargs="+", default=list(DISPATCHERS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    header = "".join(f"{name:>24}" for name in options.dispatchers)
    print(f"{'tokens k   D   F   E load':<30}{'product ms':>16}{header}")
    for size in (size for name in options.sizes for size in SIZES[name]):
        times = measure(size, options.dispatchers, options.rounds)
        forward, both = times["product"]
        cells = "".join(
            f"{f'{1e3 * times[n][0]:.2f}/{1e3 * times[n][1]:.2f} ms {forward / times[n][0]:.2f}/{both / times[n][1]:.2f}':>24}"
            for n in options.dispatchers
        )
        shape = f"{size.tokens:6} {size.top_k} {size.model:3} {size.hidden:4} {size.experts:3} {size.load}"
        print(f"{shape:<30}{f'{1e3 * forward:.2f}/{1e3 * both:.2f}':>16}{cells}", flush=True)


if __name__ == "__main__":
    main()
