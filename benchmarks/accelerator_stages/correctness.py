"""Check the results of kernels on new random data before any timing.

The error is ‖result - expected‖ / ‖expected‖, where the expected values are computed from the same inputs in float64
for each group, or in float32 on the host's CPU. Rounding to bfloat16 causes errors up to 4e-3; matrix units that round
float32 to 19 bits (TF32) cause 3e-4.
"""

from __future__ import annotations

import functools
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from accelerator_stages.cases import Cases, Row
from accelerator_stages.shapes import Experts, check_accepts, group_sizes, kernels
from accelerator_stages.steps import Variant
from accelerator_stages.timing import is_alive
from moejax.architecture import Architecture
from moejax.data.config import DataConfig
from moejax.kernels.attention import AttentionMask
from moejax.kernels.cross_entropy import weighted_loss
from moejax.kernels.experts import Experts as ExpertArrays
from moejax.kernels.quantization import F32, TYPES, quantize
from moejax.kernels.saved_names import MOE_GATE_UP
from moejax.kernels.table import load
from moejax.model.embedding import look_up
from moejax.model.runtime import Runtime
from moejax.routing.layout import by_expert
from moejax.routing.routers import ROUTERS
from moejax.train.mesh import MeshShape, batch_sharding, make_mesh
from moejax.train.program import make_program
from moejax.train.schedule import Schedule, WarmupStableDecay
from moejax.train.training import Recipe, Training

LIMITS = {"bfloat16": 1e-2, "float32": 1e-3}
"""Maximum error by computation type: rounding errors are below, errors by a wrong index or a lost row far above."""
COSINE_LIMIT = 0.02
"""Maximum decrease of a gradient's cosine similarity by remat. In bfloat16, some tokens' experts differ between
programs. If saved rows are assigned to wrong experts, cosines are below 0.6."""
LOADS = ("balanced", "zipf", "half are empty", "one has all")


def main(cases: Cases) -> None:
    cases = replace(cases, is_alive=is_alive)
    checks = Checks(cases.is_dry, secrets.randbits(32))
    cases.measure("float32 step, highest precision", partial(checks.step, "highest"))
    if not cases.is_dry:
        # By default, matrix units round float32 inputs; on a CPU both precisions give the same results.
        cases.measure("float32 step, default precision", partial(checks.step, "default", 1e-2))
    for remat, is_scanned in itertools.product(("full", MOE_GATE_UP, Variant.remat), (False, True)):
        name = f"gradients, remat {remat}{', scanned layers' * is_scanned}"
        cases.measure(name, partial(checks.gradients, remat, is_scanned))
    cases.measure("cross-entropy", checks.cross_entropy)
    cases.measure("embedding", checks.embedding)
    for kernel in kernels("attention"):
        for mask in ("causal", "documents", "window", "documents and window"):
            cases.measure(f"attention {kernel}, {mask}", partial(checks.attention, kernel, mask))
    for kernel in kernels("experts"):
        cases.measure(f"experts with biases {kernel}", partial(checks.experts, kernel))
    for given in LOADS:
        for backend in kernels("grouped_matmul", reference=cases.is_dry):
            cases.measure(f"grouped {backend}, {given}", partial(checks.grouped, backend, given))
        for kernel, quantization in itertools.product(kernels("grouped_matmul_8_bits"), TYPES):
            run = partial(checks.grouped_8_bits, kernel, quantization, given)
            cases.measure(f"grouped {quantization} {kernel}, {given}", run)


def error(found: Any, expected: Any) -> float:
    """Return the relative error over all entries; NaN counts as an infinite error."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    distance = float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))
    return distance if np.isfinite(distance) else float("inf")


@dataclass(frozen=True)
class Checks:
    """Checks with one data type, on data from one seed."""

    is_dry: bool
    seed: int

    @property
    def dtype(self) -> Any:
        """The data type: bfloat16 on accelerators; the CPU kernels support only float32."""
        return jnp.float32 if self.is_dry else jnp.bfloat16

    def normal(self, *shape: int, scale: float = 1.0, dtype: Any = None) -> jax.Array:
        """Return random numbers, different for each shape."""
        key = jax.random.fold_in(jax.random.key(self.seed), sum(n * 31**i for i, n in enumerate(shape)) % 2**31)
        return (scale * jax.random.normal(key, shape)).astype(dtype or self.dtype)

    def row(
        self, found: dict[str, Any], expected: dict[str, Any], dtype: Any = None, limit: float | None = None
    ) -> Row:
        """Return a row with the errors of several arrays and the largest error."""
        errors = {name: error(found[name], expected[name]) for name in expected}
        name = jnp.dtype(dtype or self.dtype).name
        limit = LIMITS[name] if limit is None else limit
        worst = max(errors.values())
        return {"error_ratio": worst, "limit": limit, "is_right": worst <= limit, "errors": errors, "dtype": name,
                "seed": self.seed}  # fmt: skip

    def grouped(self, backend: str, given: str) -> Row:
        """Check grouped matmuls and both gradients; rows after the last group belong to no expert and contain NaN."""
        of = Experts("", 64, 2, 4, 48, 32) if self.is_dry else Experts("", 4096, 4, 32, 1024, 768)
        sizes, nobodys = group_sizes(of, given, self.seed), of.rows // 8
        mine = (jnp.arange(of.rows + nobodys) < of.rows)[:, None]
        x, dy = (
            jnp.where(mine, self.normal(of.rows + nobodys, width), jnp.nan).astype(self.dtype)
            for width in (of.width, of.hidden)
        )
        matrices = self.normal(of.experts, of.width, of.hidden, scale=of.width**-0.5)
        check_accepts("grouped_matmul", backend, x, matrices)
        chosen, counts = load("grouped_matmul", backend), jnp.asarray(sizes)
        found = {
            "forward": jax.jit(chosen.forward)(x, matrices, counts)[: of.rows],
            "rows_gradient": jax.jit(chosen.rows_gradient)(dy, matrices, counts)[: of.rows],
            "matrices_gradient": jax.jit(chosen.matrices_gradient)(x, dy, counts),
        }
        return self.row(found, group_by_group(x[: of.rows], dy[: of.rows], matrices, sizes))

    def grouped_8_bits(self, kernel: str, quantization: str, given: str) -> Row:
        """Check 8-bit grouped matmuls against exact matmuls of the same 8-bit numbers, with rows that belong to no
        expert.
        """
        of = Experts("", 4096, 4, 32, 1024, 768)
        sizes = group_sizes(of, given, self.seed)
        x = self.normal(of.rows + of.rows // 8, of.width)
        matrices = self.normal(of.experts, of.hidden, of.width, scale=of.width**-0.5)
        check_accepts("grouped_matmul_8_bits", kernel, x, matrices, quantization=quantization)
        product = partial(load("grouped_matmul_8_bits", kernel), quantization=quantization)
        found = jax.jit(product)(x, matrices, jnp.asarray(sizes))[: of.rows]
        eight = [quantize(one, -1, quantization) for one in (x[: of.rows], matrices)]
        rows, columns = (np.asarray(one.values.astype(F32) * one.scale, np.float64) for one in eight)
        expected = [part @ columns[g].T for g, part in enumerate(np.split(rows, np.cumsum(sizes)[:-1]))]
        return self.row({"forward": found}, {"forward": np.concatenate(expected)})

    def attention(self, kernel: str, mask: str) -> Row:
        """Check the output and the gradients of queries, keys and values."""
        batch, length, heads, groups, width = (2, 64, 4, 2, 16) if self.is_dry else (2, 2048, 8, 2, 128)
        query = self.normal(batch, length, heads, width)
        key, value = (self.normal(batch, length, groups, width, scale=s) for s in (1.0, 0.7))
        dy = self.normal(batch, length, heads * width).reshape(query.shape)
        window, segments = length // 4 if "window" in mask else 0, None
        if "documents" in mask:
            ends = np.random.default_rng(self.seed).permuted(np.tile(np.arange(length) < 5, (batch, 1)), axis=1)
            segments = jnp.asarray(1 + np.cumsum(ends, axis=1), jnp.int32)

        def of(name: str) -> Callable[..., Any]:
            function = load("attention", name)

            def compute(query, key, value, segments):
                seen = AttentionMask(window=window, query_segments=segments, key_segments=segments)
                return function(query, key, value, seen, scale=width**-0.5, slopes=None, sinks=None)

            return compute

        seen = AttentionMask(window=window, query_segments=segments, key_segments=segments)
        check_accepts("attention", kernel, query, key, value, seen, scale=width**-0.5, slopes=None, sinks=None)
        found = with_gradients(of(kernel), (query, key, value), dy, segments)
        return self.row(found, on_host(of("reference"), (query, key, value), dy, segments))

    def experts(self, kernel: str) -> Row:
        """Check a layer's experts with biases: outputs and all gradients."""
        of = Experts("", 64, 2, 4, 32, 16) if self.is_dry else Experts("", 2048, 4, 16, 512, 384)
        shapes = {"gate_up": (2, of.width, of.hidden), "down": (of.hidden, of.width)}
        matrices = {n: self.normal(of.experts, *s, scale=s[-2] ** -0.5) for n, s in shapes.items()}
        biases = {f"{n}_bias": self.normal(of.experts, *s[:-2], s[-1], scale=0.1) for n, s in shapes.items()}
        routing = ROUTERS["softmax_topk"](self.normal(of.tokens, of.experts, dtype=jnp.float32), top_k=of.top_k)
        x, dy = self.normal(of.tokens, of.width), self.normal(of.tokens + 1, of.width)[1:]
        layout = partial(by_expert, routing)
        arrays: dict[str, Any] = matrices | biases
        given = ExpertArrays(**arrays)
        check_accepts("experts", kernel, x, routing.combine_weight, layout, given)

        def of_kernel(name: str) -> Callable[..., Any]:
            function = load("experts", name)
            return lambda x, weight, given, routing: function(
                x, weight, partial(by_expert, routing), given, tokens_per_expert=of.rows // of.experts
            )

        arguments = (x, routing.combine_weight, given)
        found = with_gradients(of_kernel(kernel), arguments, dy, routing)
        return self.row(found, on_host(of_kernel("reference"), arguments, dy, routing))

    def cross_entropy(self) -> Row:
        """Check the weighted loss of tokens and its gradients."""
        tokens, width, vocab = (64, 16, 101) if self.is_dry else (2048, 512, 50_304)
        hidden, matrix = self.normal(1, tokens, width), self.normal(width, vocab, scale=0.05)
        weights = jnp.abs(self.normal(1, tokens, dtype=jnp.float32)) / tokens
        targets = jnp.asarray(np.random.default_rng(self.seed).integers(0, vocab, (1, tokens)), jnp.int32)

        def loss(hidden, matrix, targets_and_weights):
            targets, weights = targets_and_weights
            return weighted_loss(hidden, matrix, targets, weights)

        arguments, rest = (hidden, matrix.astype(jnp.float32)), (targets, weights)
        found = with_gradients(loss, arguments, jnp.ones(()), rest)
        return self.row(found, on_host(loss, arguments, jnp.ones(()), rest))

    def embedding(self) -> Row:
        """Check the gradient of the embedding table: frequent tokens occur thousands of times in a batch, and bfloat16
        cannot sum so many gradients.
        """
        tokens, width, vocab = (256, 16, 64) if self.is_dry else (32_768, 256, 50_304)
        drawn = np.minimum(np.random.default_rng(self.seed).zipf(1.3, (1, tokens)) - 1, vocab - 1).astype(np.int32)
        table, dy = self.normal(vocab, width, dtype=jnp.float32), self.normal(1, tokens, width)
        back = jax.jit(lambda table, dy: jax.vjp(lambda t: look_up(t, jnp.asarray(drawn), self.dtype), table)[1](dy)[0])
        expected = np.zeros((vocab, width))
        np.add.at(expected, drawn[0], np.asarray(dy[0], np.float64))
        found = np.asarray(back(table, dy), np.float64)
        most = np.bincount(drawn[0]).argmax()
        arrays = {"table": expected, "most frequent token": expected[most]}
        return self.row({"table": found, "most frequent token": found[most]}, arrays, limit=1e-4)

    def step(self, precision: str, limit: float | None = None) -> Row:
        """Check loss, gradient norm and moments after a step of a small MoE model in float32 against the host's CPU."""
        host, device = (make_mesh(MeshShape(), [one]) for one in (jax.devices("cpu")[0], jax.devices()[0]))
        length = 16 if self.is_dry else 256
        expected, found = (self.after_a_step(mesh, Runtime(), precision, 8, length) for mesh in (host, device))

        def together(numbers: dict[str, float], moments: dict[str, np.ndarray]) -> dict[str, Any]:
            return {**numbers, "moments": np.concatenate([one.ravel() for one in moments.values()])}

        return self.row(together(*found), together(*expected), jnp.float32, limit)

    def gradients(self, remat: str, is_scanned: bool) -> Row:
        """Measure the cosine similarity of a step's bfloat16 and float32 gradients, and its decrease by remat.

        Routers must choose the same experts when the forward pass is recomputed; otherwise many tokens get wrong
        gradients.
        """
        device = make_mesh(MeshShape(), [jax.devices()[0]])

        def of(dtype: str, remat: str) -> dict[str, np.ndarray]:
            runtime = Runtime(compute_dtype=dtype, remat=remat, scan_layers=is_scanned)
            return self.after_a_step(device, runtime, "highest", 32, 16 if self.is_dry else 1024)[1]

        exact, without, found = of("float32", "none"), of("bfloat16", "none"), of("bfloat16", remat)
        cosines = {name: (cosine(found[name], exact[name]), cosine(without[name], exact[name])) for name in exact}
        lost = max(none - ours for ours, none in cosines.values())
        return {"error_ratio": lost, "limit": COSINE_LIMIT, "is_right": lost <= COSINE_LIMIT,
                "errors": {name: 1 - ours for name, (ours, _) in cosines.items()}, "dtype": "bfloat16",
                "seed": self.seed}  # fmt: skip

    @functools.cache  # noqa: B019
    def after_a_step(
        self, mesh: Mesh, runtime: Runtime, precision: str, experts: int, length: int
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """Return metrics and optimizer state after a step of a small MoE model, from parameters drawn on the host."""
        width = 16 if self.is_dry else 256
        architecture = Architecture(
            vocab_size=257, model_dim=width, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=width // 4,
            num_experts=experts, top_k=2, expert_hidden=width,
        )  # fmt: skip
        recipe = Recipe(
            budgets_tokens=(1000 * 8 * length,),
            batch_tokens=8 * length,
            data=DataConfig(source="", sequence_length=length),
            runtime=runtime,
        )
        training = Training(name="check", architecture=architecture, recipe=recipe, seed=self.seed)
        drawn = np.random.default_rng(self.seed).integers(0, 257, (8, length + 1)).astype(np.int32)
        rate = WarmupStableDecay(peak=1e-3, warmup_steps=0.0, decay_start=1e6, decay_steps=10.0, final_share=0.1)
        host = make_mesh(MeshShape(), [jax.devices("cpu")[0]])
        with jax.set_mesh(host):
            # Compare only the step, not the initialization of parameters.
            first = jax.tree.map(np.asarray, make_program(training, host).init(self.seed))
        with jax.set_mesh(mesh), jax.default_matmul_precision(precision):
            program = make_program(training, mesh)
            state = jax.device_put(first, program.shardings)
            batch = jax.device_put({"tokens": drawn}, batch_sharding(mesh))
            state, metrics = program.step(state, batch, Schedule(learning_rate=rate, weight_decay=0.1))
        # Adam's first moment after one step is proportional to the clipped gradient; its update is mostly signs.
        moments = {
            jax.tree_util.keystr(path): np.asarray(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state.optimizer)
            if np.ndim(leaf)
        }
        return {name: float(metrics[name]) for name in ("loss", "gradient_norm")}, moments


def cosine(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the cosine similarity over all entries; -1 if an entry is NaN."""
    found, expected = (x.astype(np.float64).ravel() for x in (found, expected))
    together = found @ expected / max(np.linalg.norm(found) * np.linalg.norm(expected), 1e-300)
    return float(together) if np.isfinite(together) else -1.0


def group_by_group(x: jax.Array, dy: jax.Array, matrices: jax.Array, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return grouped matmuls and their gradients in float64."""
    inputs, gradients, weights = (np.asarray(array, np.float64) for array in (x, dy, matrices))
    forward, drows, dmatrices = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(matrices.shape)
    for group, end in enumerate(np.cumsum(sizes)):
        rows = slice(end - sizes[group], end)
        forward[rows], drows[rows] = inputs[rows] @ weights[group], gradients[rows] @ weights[group].T
        dmatrices[group] = inputs[rows].T @ gradients[rows]
    return {"forward": forward, "rows_gradient": drows, "matrices_gradient": dmatrices}


def with_gradients(function: Callable[..., Any], inputs: tuple[Any, ...], dy: jax.Array, rest: Any) -> dict[str, Any]:
    """Return ``function(*inputs, rest)`` and the gradients of the inputs."""

    def both(inputs, dy, rest):
        y, back = jax.vjp(lambda *inputs: function(*inputs, rest), *inputs)
        return y, back(dy.astype(y.dtype))

    y, gradients = jax.jit(both)(inputs, dy, rest)
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    return {"output": y} | {f"gradient{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def on_host(function: Callable[..., Any], inputs: tuple[Any, ...], dy: jax.Array, rest: Any) -> dict[str, Any]:
    """Evaluate ``with_gradients`` on the CPU, with the same inputs in float32."""

    def wide(x: Any) -> Any:
        x = jnp.asarray(np.asarray(x))
        return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

    cpu = jax.devices("cpu")[0]
    with jax.set_mesh(make_mesh(MeshShape(), [cpu])), jax.default_device(cpu):
        return with_gradients(function, *jax.tree.map(wide, (inputs, dy, rest)))
