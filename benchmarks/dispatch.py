"""Compare the speed of dispatchers with dense computation of the same FLOPs.

Run on one core, like a device of a data-parallel CPU run:

    taskset -c 0 python benchmarks/dispatch.py
    taskset -c 0 python benchmarks/dispatch.py --sizes quickstart --rounds 30

Each result is for one layer's experts, forward only and forward with backward (gradients of tokens, combine weights and
matrices). The two baselines have one row per assignment: ``product`` is one matmul X·W with its two gradients, X [rows,
D] and W [D, 3F]; ``expert`` sends all rows through one SwiGLU expert, which is the cost of a dense layer.

Rounds of all programs alternate, and medians of processor time are compared, which reduces the effect of other work on
the machine. The allocator keeps freed memory, because new pages cost as much as the arithmetic at these sizes. The
capacity dispatcher has a capacity factor of 2, so it drops tokens and does less work if loads are skewed.
"""

import argparse
import dataclasses
import statistics
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moejax.kernels.experts import Experts, project_down, project_up
from moejax.routing import DISPATCHERS
from moejax.routing.layout import limit_capacity
from moejax.routing.routing import Routing, token_choice
from moejax.train.host import keep_memory


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
    """Draw distinct experts for each token, with equal probabilities or 1/rank (Zipf's law)."""
    weight = np.ones(size.experts) if size.load == "balanced" else 1.0 / np.arange(1, size.experts + 1)
    # The indices of the largest values of log-weight + Gumbel noise are a sample without replacement.
    noise = generator.gumbel(size=(size.tokens, size.experts)) + np.log(weight)
    expert = jnp.asarray(np.argsort(-noise, axis=1)[:, : size.top_k], jnp.int32)
    logits = jnp.zeros((size.tokens, size.experts))
    return token_choice(logits, logits, expert, jnp.full(expert.shape, 1.0 / size.top_k))


def with_gradients(function):
    """Compile a function's value and its gradients.

    The last two arguments are the experts of the assignments, which have no gradient, and the cotangent of the value.
    """

    def both(*arguments):
        *inputs, expert, dy = arguments
        y, back = jax.vjp(lambda *inputs: function(*inputs, expert), *inputs)
        return y, back(dy)

    return jax.jit(both)


def programs(size: Size, dispatchers: list[str]) -> dict[str, tuple]:
    """Return functions by name, each with its arguments and the cotangent of its value."""
    generator = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(generator.standard_normal(shape), jnp.float32) * 0.1

    routing, rows = draw_routing(size, generator), size.tokens * size.top_k
    shapes = (2, size.model, size.hidden), (size.hidden, size.model)
    weights = [normal(size.experts, *shape) for shape in shapes]
    arguments = normal(size.tokens, size.model), routing.combine_weight, Experts(gate_up=weights[0], down=weights[1])

    def of(name):
        def dispatched(x, weight, experts, expert):
            # The choice is an argument, so that the compiler cannot sort it at compile time.
            given = dataclasses.replace(routing, expert=expert, combine_weight=weight)
            served = limit_capacity(given, 2.0) if name == "capacity" else given
            return DISPATCHERS[name](x, served, experts)

        return dispatched

    def one_expert(x, weight, experts, expert):
        return project_down(project_up(x, experts), weight, experts)

    def product(x, matrix, expert):
        return jnp.matmul(x, matrix)

    first = Experts(gate_up=weights[0][0], down=weights[1][0])
    made = {
        "product": (product, (normal(rows, size.model), normal(size.model, 3 * size.hidden)), 3 * size.hidden),
        "expert": (one_expert, (normal(rows, size.model), routing.combine_weight, first), size.model),
    } | {name: (of(name), arguments, size.model) for name in dispatchers}
    return {
        name: (function, (*arguments, routing.expert), normal(arguments[0].shape[0], width))
        for name, (function, arguments, width) in made.items()
    }


def seconds(program, *arguments) -> float:
    start = time.process_time()
    jax.block_until_ready(program(*arguments))
    return time.process_time() - start


def measure(size: Size, dispatchers: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Measure the median seconds of forward, and of forward with backward, by name."""
    made = {
        name: (jax.jit(function), with_gradients(function), arguments, dy)
        for name, (function, arguments, dy) in programs(size, dispatchers).items()
    }
    times = {name: ([], []) for name in made}
    for turn in range(rounds + 2):
        for name, (forward, both, arguments, dy) in made.items():
            pair = seconds(forward, *arguments), seconds(both, *arguments, dy)
            if turn >= 2:
                for series, value in zip(times[name], pair, strict=True):
                    series.append(value)
    return {name: (statistics.median(f), statistics.median(b)) for name, (f, b) in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=["quickstart", "reference"])
    parser.add_argument("--dispatchers", choices=DISPATCHERS, nargs="+", default=list(DISPATCHERS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    keep_memory()
    for size in (size for name in options.sizes for size in SIZES[name]):
        print(f"tokens {size.tokens}, top {size.top_k}, D {size.model}, F {size.hidden}, E {size.experts}, {size.load}")
        times = measure(size, options.dispatchers, options.rounds)
        for name, (forward, both) in times.items():
            shares = "  ".join(
                f"{yardstick} {times[yardstick][0] / forward:4.2f} / {times[yardstick][1] / both:4.2f}"
                for yardstick in ("product", "expert")
            )
            print(f"  {name:<10} {1e3 * forward:8.2f} / {1e3 * both:8.2f} ms   {shares}", flush=True)


if __name__ == "__main__":
    main()
