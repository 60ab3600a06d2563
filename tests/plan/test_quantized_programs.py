"""Steps whose products are of 8-bit numbers, compiled for chips that are not here, and what plans say of them."""

import importlib.util
import re
from collections import Counter

import pytest
from small_model import SMALL

from moejax.errors import UserError
from moejax.kernels.table import has_tokamax
from moejax.laws.accounting import flops_per_token
from moejax.laws.chips import CHIPS
from moejax.model.runtime import Runtime
from moejax.model.transformer import abstract_params
from moejax.plan.plan import check_plan
from moejax.plan.process import plan
from moejax.plan.program_text import instructions
from moejax.plan.step_time import memory_traffic, quantized_flops, roofline, step_flops
from moejax.plan.topology import has_cuda_plugin, parse
from moejax.train.mesh import MeshShape
from moejax.train.training import DataConfig, Recipe, Training
from moejax.weights.folder import flat

SHAPE = SMALL.replace(
    vocab_size=512, model_dim=256, head_dim=128, num_experts=8, expert_hidden=128, num_shared_experts=1
)


def training(kind, mesh=None, **runtime):
    return Training(
        name="small",
        architecture=SHAPE,
        recipe=Recipe(
            budgets_tokens=(65536,),
            batch_tokens=8192,
            data=DataConfig(source="few", sequence_length=512),
            mesh=mesh or MeshShape(fsdp=2, expert=2),
            runtime=Runtime(**{"compute_dtype": "bfloat16", "matmul_quantization": kind, **runtime}),
        ),
    )


def kinds_of_products(text):
    """How many products, and kernels of Pallas with some, read which types."""
    found = Counter()
    for one in instructions(text):
        if one.opcode in ("dot", "convolution") or "tpu_custom_call" in one.rest or "mosaic_gpu" in one.rest:
            types = {re.match(r"[a-z0-9]+", operand)[0] for operand in one.operands}
            found[next((kind for kind in ("f8e4m3fn", "s8") if kind in types), "wider")] += 1
    return found


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
@pytest.mark.skipif(not has_tokamax(), reason="tokamax is not installed (extra: quantization)")
@pytest.mark.parametrize(("chip", "kind", "word"), [("v5e:2x2", "int8", "s8"), ("tpu7x:2x2x1", "fp8", "f8e4m3fn")])
def test_a_tpus_step_has_products_of_8_bits(tmp_path, chip, kind, word):
    path = tmp_path / "program.txt"
    found = plan(training(kind, MeshShape(data=1, fsdp=-1), scan_layers=True), parse(chip), text_to=path)
    text = path.read_text()
    # Forwards and for gradients of rows: of four projections of attention, three of the shared expert, and two grouped.
    assert kinds_of_products(text)[word] >= 2 * (4 + 3 + 2)
    assert found.fits


@pytest.mark.gpu_programs
@pytest.mark.skipif(not has_cuda_plugin(), reason="JAX's CUDA wheels are not installed: make gpu-programs")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tokamax")
def test_an_h100s_step_has_products_of_8_bits_and_none_over_all_experts(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    path = tmp_path / "program.txt"
    plan(training("fp8", MeshShape(fsdp=2, expert=2), scan_layers=True), parse("h100:4"), text_to=path)
    text = path.read_text()
    assert kinds_of_products(text)["f8e4m3fn"] >= 2 * (4 + 3 + 2)
    assert "mosaic_gpu" in text
    # Each of a device's four experts with all rows there is room for.
    rows = int(1.25 * 2 * 4096 / 2)
    assert not re.search(rf"\[4,{rows},|\[{rows},4,", text)


@pytest.mark.parametrize(("chip", "kind"), [("h100", "fp8"), ("v5p", "int8")])
def test_the_roofline_takes_such_products_at_their_own_peak(chip, kind):
    plain, quantized = training("none"), training(kind)
    mesh = {"dcn_data": 1, "data": 1, "fsdp": 2, "expert": 2, "tensor": 1}
    part = flops_per_token(SHAPE, 512)
    matrices = part.attention_projections + part.routed_experts + part.shared_experts + part.dense_feed_forward
    # Two of three passes; with everything computed again, three of four.
    assert quantized_flops(quantized) == 2 * matrices * 8192
    assert quantized_flops(training(kind, remat="full")) == 3 * matrices * 8192
    assert quantized_flops(plain) == 0
    before, after = (roofline(one, mesh, CHIPS[chip], 0, {}).compute_seconds for one in (plain, quantized))
    saved = 1 / CHIPS[chip].flops_per_second - 1 / CHIPS[chip].peak(kind)
    assert before - after == pytest.approx(2 * matrices * 8192 / 4 * saved)
    assert step_flops(plain) == step_flops(quantized)


@pytest.mark.parametrize(("chip", "times"), [("h100", 2), ("v5p", 1)])
def test_float32_is_tf32_on_a_gpu_and_bfloat16_on_a_tpu(chip, times):
    mesh = {"dcn_data": 1, "data": 1, "fsdp": 2, "expert": 2, "tensor": 1}
    plain, wide = (
        roofline(training("none", compute_dtype=dtype), mesh, CHIPS[chip], 0, {}).compute_seconds
        for dtype in ("bfloat16", "float32")
    )
    assert wide == pytest.approx(times * plain)


@pytest.mark.parametrize(("remat", "passes"), [("none", 2), ("full", 3)])
def test_quantizing_weights_costs_bytes_of_memory_in_every_pass_that_meets_them(remat, passes):
    mesh = {"dcn_data": 1, "data": 1, "fsdp": 2, "expert": 2, "tensor": 1}
    before, after = (memory_traffic(training(kind, remat=remat), mesh, 0) for kind in ("none", "int8"))
    sizes = {name: array.size for name, array in flat(abstract_params(SHAPE))}
    routed = sum(size for name, size in sizes.items() if name.endswith((".gate_up", ".down")) and "shared" not in name)
    assert routed == 2 * 8 * 3 * 256 * 128
    attention = ("attention.query", "attention.key", "attention.value", "attention.output")
    others = sum(size for name, size in sizes.items() if name.endswith(attention) or ".shared." in name)
    # A device's experts: read twice of two bytes, written and read of one, where two were read.
    of_routed = routed / 2 * (2 + 2 + 1 + 1 - 2)
    # Its shards of projections the same, gathered in one byte where two were written and read.
    of_others = others / 2 * (2 + 2 + 1) - others * 2
    assert after - before == pytest.approx(passes * (of_routed + of_others))


@pytest.mark.parametrize(("topology", "kind"), [("a100:4", "fp8"), ("v5e:2x2", "fp8"), ("tpu7x:1x2x1", "int8")])
def test_a_plan_for_a_chip_without_them_is_refused_before_it_is_compiled(topology, kind):
    with pytest.raises(UserError, match=rf"matmul_quantization is '{kind}', but .* does not support such matmuls"):
        check_plan(training(kind), parse(topology))
