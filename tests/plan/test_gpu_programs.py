"""Programs compiled for NVIDIA GPUs that are not here call fused and grouped kernels, and loop over no blocks or tiles.

They need JAX's CUDA wheels, in an environment of their own: ``make gpu-programs``.
"""

import math
import multiprocessing
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from moejax.cli.config_file import load as load_config
from moejax.kernels.attention import AttentionMask, attention
from moejax.kernels.experts import Experts
from moejax.kernels.grouped_matmul import grouped_matmul
from moejax.kernels.grouped_matmul.mosaic_8_bits import COLUMNS, ROWS, in_8_bits
from moejax.kernels.linear import project
from moejax.kernels.private_api import tracing_for_gpu
from moejax.kernels.table import TABLE, select
from moejax.plan import program_time
from moejax.plan.plan import measure
from moejax.plan.process import plan
from moejax.plan.topology import has_cuda_plugin, parse
from moejax.routing import ROUTERS
from moejax.routing.dispatch import grouped as dispatch_grouped
from moejax.sharding import TOKEN_AXES
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.training import Training

pytestmark = [
    pytest.mark.gpu_programs,
    pytest.mark.skipif(not has_cuda_plugin(), reason="JAX's CUDA wheels are not installed: make gpu-programs"),
    # Tokamax's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tokamax"),
]
MOSAIC, TRITON, JAX_TRITON = "mosaic_gpu_v2", "__gpu$xla.gpu.triton", "triton_kernel_call"
PALLAS_TRITON = "jax.experimental.pallas.triton"
CUDNN = {"__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"}


def calls(text):
    """What a compiled program calls that XLA did not write, with how often it stands there."""
    return Counter(re.findall(r'custom_call_target="([^"]+)"', text))


def loops(text):
    """Its loops by the operations of JAX that they come from."""
    return re.findall(r' while\(.*?op_name="([^"]+)"', text)


@contextmanager
def absent(modules):
    """Let imports of these modules fail."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(dict.fromkeys(modules))
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)


def compiled(topology, function, *shapes, split=(), without=(), **mesh):
    """Return the text of a function's program on a topology, as if the modules ``without`` were not installed.

    Shapes have their types beside them.
    """
    devices = parse(topology).compile_only_devices()
    given = make_mesh(MeshShape(**{"data": 1, **mesh}), devices)
    place = NamedSharding(given, PartitionSpec(split) if split else PartitionSpec())
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=place) for shape, dtype in shapes]
    with absent(without), jax.set_mesh(given), tracing_for_gpu(devices[0]):
        return jax.jit(function).lower(*arguments).compile().as_text()


def planned(training, topology, path, without):
    """Compile a training's whole step, as if the modules ``without`` were not installed, and return its text."""
    with absent(without):
        measure(training, parse(topology), text_to=str(path))
    return path.read_text()


@pytest.fixture(scope="module")
def compiled_for():
    """The same in a process for each kind of GPU: Mosaic keeps the first that it compiles for."""
    with ExitStack() as stack:

        @cache
        def process(kind):
            one = ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn"))
            return stack.enter_context(one)

        def run(topology, *arguments, **options):
            return process(topology.partition(":")[0]).submit(compiled, topology, *arguments, **options).result()

        yield run


@pytest.fixture
def plain_environment(monkeypatch):
    """As a user's: the tests' flags are a CPU's, and some would change what is compiled for a GPU."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)


def test_a_step_of_olmoes_shape_on_8_h100_calls_kernels_and_has_no_loop_over_blocks(tmp_path, plain_environment):
    training = load_config(Training, "configs/plans/weak_scaling.py:8", [])
    recipe = replace(training.recipe, mesh=MeshShape(fsdp=4, expert=2))
    path = tmp_path / "program.txt"
    found = plan(replace(training, recipe=recipe), parse("h100:8"), text_to=path)
    text = path.read_text()
    kernels = calls(text)
    assert found.fits
    assert set(kernels) >= CUDNN
    # One layer's: two products forwards, and of each the gradient of rows and the one of matrices, of the rows that a
    # device's buffer holds; and the same behind a condition, for rows that exceed it.
    slots = recipe.batch_tokens // 4 * training.architecture.top_k
    buffer = math.ceil(recipe.runtime.buffer_factor * slots / 2)
    assert MOSAIC not in kernels
    products = [line for line in text.splitlines() if TRITON in line]
    of_matrices = [line for line in products if re.search(r"= bf16\[32,(2048|1024),2048\]", line)]
    of_rows = [line for line in products if re.search(rf"= bf16\[{buffer},(1024|2048)\]", line)]
    assert len(of_matrices) >= 2
    assert len(of_rows) >= 2 + 2
    assert len(of_matrices) + len(of_rows) == len(products)
    # Over layers, over chunks of the loss, and those of binary searches; none over experts, blocks or tiles. Behind the
    # condition also over the chunks of rows that exceed the buffer, once forwards and twice backwards.
    assert not [name for name in loops(text) if "attention" in name or "fori" in name]
    # The branch for false, which comes first.
    further = [name for name in loops(text) if "/cond/branch_0_fun/while" in name]
    assert len(further) <= 3
    assert text.count(" while(") <= 6 + len(further)
    # A dense product would have every expert's rows for every row.
    assert not re.search(rf"\[32,{buffer},|\[{buffer},32,(1024|2048)\]", text)
    # The program's products, one by one, are those of the architecture's own accounting, but that the second product of
    # the experts need not be computed again, and that cuDNN has nine of scores for eight: backwards it computes them
    # again.
    a = training.architecture
    second = 2 * recipe.batch_tokens * a.top_k * a.expert_hidden * a.model_dim * a.num_layers
    scores = sum(one.times * program_time.attention_flops(one) for one in program_time.kernels(text)) / 9
    assert found.devices * (found.program.flops - scores) == pytest.approx(found.step_flops - second, rel=1e-3)
    assert found.roofline.step_seconds < found.program.floor_seconds
    assert 0 < found.program.waited_seconds < sum(found.program.link_seconds.values())


def test_hoppers_float8_kernel_adds_up_in_float32_what_its_units_sum_of_128_products(tmp_path, monkeypatch):
    """As its units keep few bits of a sum: read in the kernel's PTX."""
    monkeypatch.setenv("MOSAIC_GPU_DUMP_TO", str(tmp_path))
    shapes = [((4096, 2048), jnp.bfloat16), ((16, 768, 2048), jnp.bfloat16), ((16,), jnp.int32)]
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(compiled, "h100:1", partial(in_8_bits, quantization="fp8"), *shapes).result()
    (text,) = (path.read_text() for path in tmp_path.glob("*.ptx"))
    before, sums = text.split("wgmma.fence.sync.aligned")
    sums, after = re.split(r"wgmma\.wait_group\.sync\.aligned\s+0", sums)
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k32\.f32\.e4m3\.e4m3", sums)
    assert sum(64 * int(columns) * 32 for columns in products) == ROWS * COLUMNS * 128
    assert "wgmma" not in before + after
    # Of each of a group's 128 threads its part of the sums. The kernel adds nothing else in float32.
    assert len(re.findall(r"\badd(?:\.rn)?\.f32\b", text)) == ROWS * COLUMNS // 128
    assert not re.search(r"[1-9]\d* bytes spill", next(tmp_path.glob("*.ptxas")).read_text())


def grouped(has_tokamax, rows, matrices, sizes, dy):
    """Return a product with both gradients."""
    kernels = TABLE["grouped_matmul"]
    kernels["tokamax"] = kernels["tokamax"]._replace(is_available=lambda: has_tokamax)
    backend = select("grouped_matmul", rows, matrices)
    y, back = jax.vjp(lambda *given: grouped_matmul(backend, *given, sizes), rows, matrices)
    return y, back(dy)


@pytest.mark.parametrize(
    ("topology", "tokamax", "without", "dtype", "expected"),
    [
        ("h100:1", True, (), jnp.bfloat16, {TRITON: 3}),
        ("b200:1", True, (), jnp.bfloat16, {MOSAIC: 2, TRITON: 1}),
        ("b200:1", False, (), jnp.bfloat16, {MOSAIC: 2, TRITON: 1}),
        ("a100:1", False, (), jnp.bfloat16, {TRITON: 3}),
        ("h100:1", True, (PALLAS_TRITON,), jnp.bfloat16, {MOSAIC: 3}),
        ("h100:1", True, (PALLAS_TRITON,), jnp.float32, {JAX_TRITON: 3}),
        ("b200:1", True, (PALLAS_TRITON,), jnp.bfloat16, {MOSAIC: 2, JAX_TRITON: 1}),
        ("b200:1", False, (PALLAS_TRITON,), jnp.bfloat16, {MOSAIC: 2, JAX_TRITON: 1}),
        ("b200:1", False, (PALLAS_TRITON,), jnp.float32, {JAX_TRITON: 3}),
        ("a100:1", False, (PALLAS_TRITON,), jnp.bfloat16, {JAX_TRITON: 3}),
    ],
)
def test_a_grouped_product_and_its_gradients_are_three_kernels(
    topology, tokamax, without, dtype, expected, compiled_for
):
    shapes = [(8192, 2048), (16, 2048, 1024), (16,), (8192, 1024)]
    types = (dtype, dtype, jnp.int32, dtype)
    text = compiled_for(topology, partial(grouped, tokamax), *zip(shapes, types, strict=True), without=without)
    assert calls(text) == expected
    assert not loops(text)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
@pytest.mark.parametrize("topology", ["h100:1", "b200:1"])
def test_without_pallas_triton_products_in_8_bits_are_one_kernel(topology, quantization, compiled_for):
    shapes = [((8192, 2048), jnp.bfloat16), ((16, 1024, 2048), jnp.bfloat16), ((16,), jnp.int32)]
    text = compiled_for(topology, partial(eight_bits, quantization), *shapes, without=(PALLAS_TRITON,))
    is_mosaic = topology.startswith("h100") and quantization == "fp8"
    assert calls(text) == {MOSAIC if is_mosaic else JAX_TRITON: 1}


def eight_bits(quantization, rows, matrices, sizes):
    """Return a product in 8 bits."""
    kernel = select("grouped_matmul_8_bits", rows, matrices.swapaxes(1, 2), quantization=quantization)
    return kernel(rows, matrices, sizes, quantization)


@pytest.mark.parametrize(
    ("topology", "without", "expected"),
    [
        ("b200:8", (), {MOSAIC, TRITON}),
        ("h100:8", (PALLAS_TRITON,), {MOSAIC}),
        ("b200:8", (PALLAS_TRITON,), {MOSAIC, JAX_TRITON}),
        ("a100:8", (PALLAS_TRITON,), {JAX_TRITON}),
        ("a100:8", (PALLAS_TRITON, "jax_triton"), set()),
    ],
)
def test_a_whole_step_calls_the_grouped_products_that_this_jax_supports(
    topology, without, expected, tmp_path, plain_environment
):
    training = load_config(Training, "configs/plans/weak_scaling.py:8", ["--config.architecture.num_layers=2"])
    training = replace(training, recipe=replace(training.recipe, mesh=MeshShape(fsdp=4, expert=2)))
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        text = process.submit(planned, training, topology, tmp_path / "program.txt", without).result()
    assert {MOSAIC, TRITON, JAX_TRITON} & set(calls(text)) == expected
    assert set(calls(text)) >= CUDNN


def attended(window, is_packed, query, key, value, dy, segments):
    """Attention with its gradients."""
    given = segments if is_packed else None
    mask = AttentionMask(query_segments=given, key_segments=given, window=window)
    out, back = jax.vjp(partial(attention, mask=mask, scale=0.1), query, key, value)
    return out, back(dy)


@pytest.mark.parametrize(
    ("widths", "window", "packed"),
    [((128, 128), 0, False), ((128, 128), 1024, False), ((128, 128), 0, True), ((192, 128), 0, False)],
    ids=["plain", "window", "documents", "DeepSeek's latent"],
)
def test_attention_is_cudnns_and_holds_no_mask_of_queries_by_keys(widths, window, packed, compiled_for):
    batch, length, heads, groups = 8, 4096, 16, 4 if widths[0] == widths[1] else 16
    sizes = [(heads, widths[0]), (groups, widths[0]), (groups, widths[1]), (heads, widths[1])]
    shapes = [((batch, length, *size), jnp.bfloat16) for size in sizes]
    function = partial(attended, window, packed)
    segments = ((batch, length), jnp.int32)
    text = compiled_for("h100:8", function, *shapes, segments, split=TOKEN_AXES, fsdp=4, expert=2)
    assert set(calls(text)) >= CUDNN
    assert not re.search(rf"\[\d+,(\d+,)?{length},{length}\]", text)
    # Rows with more documents than the program was made for are computed by tiles, behind a condition.
    assert bool(re.search(r" conditional\(", text)) == packed
    assert bool(loops(text)) == packed


def mixed(x, logits, gate_up, down, dy):
    """A layer's experts with all gradients."""

    def outputs(x, logits, experts):
        return dispatch_grouped(x, ROUTERS["softmax_topk"](logits, top_k=8, norm_topk_prob=False), experts)

    return jax.vjp(outputs, x, logits, Experts(gate_up, down))[1](dy)


def test_no_sum_is_made_inside_a_scatter(compiled_for):
    """There one thread would make all of each: of a row's products with its gradient, 5 % of a step on an H200."""
    shapes = [(32_768, 2048), (32_768, 64), (64, 2, 2048, 1024), (64, 1024, 2048), (32_768, 2048)]
    types = (jnp.bfloat16, jnp.float32, jnp.bfloat16, jnp.bfloat16, jnp.bfloat16)
    text = compiled_for("h100:1", mixed, *zip(shapes, types, strict=True))
    scattered = [one for one in program_time.kernels(text) if "scatter" in {part.opcode for part in one.parts}]
    assert scattered
    assert not [one for one in scattered if "reduce" in {part.opcode for part in one.parts}]


def routed(x, router, dy):
    """The router's product with its gradients."""
    logits, back = jax.vjp(lambda *given: project("nd,de->ne", *given, jax.lax.Precision.HIGHEST), x, router)
    return logits, back(dy)


def test_the_routers_products_are_made_of_products_in_bfloat16(compiled_for):
    shapes = [((8192, 2048), jnp.float32), ((2048, 64), jnp.float32), ((8192, 64), jnp.float32)]
    text = compiled_for("h100:1", routed, *shapes)
    products = re.findall(r" dot\(.*", text)
    assert len(products) == 3
    assert all("algorithm=dot_bf16_bf16_f32_x6" in product for product in products)
    # By XLA's own kernel of matrix units, not by cuBLAS in float32.
    assert text.count("triton_nested_gemm_fusion") == 3
