"""Time Hugging Face's grouped matmuls, experts and training step in PyTorch, on the shapes of the stages ``grouped``
and ``steps``.

transformers computes experts with PyTorch's ``grouped_mm``. Its step keeps weights and moments in bfloat16, and so
moves fewer bytes than moejax's step, which keeps both in float32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from accelerator_stages.cases import Cases, LeftOut, Row
from accelerator_stages.packages import version
from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE

ROUNDS = 5


def main(cases: Cases) -> None:
    if not (version("torch") and version("transformers")):
        cases.write("all", left_out="PyTorch and transformers are not installed; --hf-python names a Python with them")
        return
    import torch  # pyright: ignore[reportMissingImports]

    if not (cases.is_dry or torch.cuda.is_available()):
        cases.write("all", left_out="this PyTorch sees no GPU")
        return
    # JAX reads the shapes, but must not preallocate the device's memory.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from accelerator_stages.shapes import experts

    torch.manual_seed(0)
    shapes = experts(cases.is_dry)
    there = Side(torch, "cpu" if cases.is_dry else "cuda", cases.is_dry)
    cases = replace(cases, is_alive=there.is_alive)
    for of in shapes[:1] if cases.is_dry else shapes:
        for product, widths in of.products().items():
            for part in ("forward", "rows_gradient", "matrices_gradient"):
                name = f"{of.model} {product} {part}"
                cases.measure(name, partial(there.time_product, of, widths, part, name))
    cases.measure("step", partial(there.time_step, cases, False))
    cases.measure("step, gradient checkpointing", partial(there.time_step, cases, True))
    for of in shapes[:1] if cases.is_dry else shapes:
        name = f"{of.model} experts"
        cases.measure(name, partial(there.time_experts, of, name))


class Side:
    """PyTorch on one device."""

    def __init__(self, torch: Any, device: str, is_dry: bool) -> None:
        self.torch, self.device, self.is_dry = torch, device, is_dry
        self.seconds = 0.02 if is_dry else 0.5

    def is_alive(self) -> bool:
        try:
            return float(self.torch.ones((), device=self.device) + 1) == 2
        except Exception:
            return False

    def clear(self) -> None:
        """Free the memory of the previous case."""
        if self.device != "cpu":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

    def normal(self, *shape: int) -> Any:
        found = self.torch.randn(shape, device=self.device, dtype=self.torch.bfloat16)
        return found * shape[-2] ** -0.5 if len(shape) == 3 else found

    def wait(self) -> None:
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def time(self, function: Callable[[], Any], flops: float | None = None) -> Row:
        """Return the median time of rounds of consecutive calls after warm-up, like ``timing.time_calls``."""
        for _ in range(3):
            function()
        self.wait()

        def once(calls: int) -> float:
            began = time.perf_counter()
            for _ in range(calls):
                function()
            self.wait()
            return (time.perf_counter() - began) / calls

        calls = max(1, min(20, round(self.seconds / ROUNDS / once(1))))
        times = [once(calls) for _ in range(ROUNDS)]
        middle = statistics.median(times)
        row = {"milliseconds": 1e3 * middle, "spread": (max(times) - min(times)) / middle, "calls": calls * ROUNDS}
        return row | ({} if flops is None else {"tflops_per_second": flops / middle / 1e12})

    def time_product(self, of: Any, widths: tuple[int, int], part: str, name: str) -> Row:
        """Time PyTorch's function, which transformers calls."""
        multiply = getattr(self.torch.nn.functional, "grouped_mm", None) or getattr(self.torch, "_grouped_mm", None)
        if multiply is None:
            raise LeftOut(f"PyTorch {self.torch.__version__} has no grouped_mm")
        self.clear()
        into, out_of = widths
        x, dy, matrices = (
            self.normal(of.rows, into),
            self.normal(of.rows, out_of),
            self.normal(of.experts, into, out_of),
        )
        each = of.rows // of.experts
        ends = each * self.torch.arange(1, of.experts + 1, device=self.device, dtype=self.torch.int32)
        function = {
            "forward": lambda: multiply(x, matrices, offs=ends),
            "rows_gradient": lambda: multiply(dy, matrices.transpose(-2, -1), offs=ends),
            "matrices_gradient": lambda: multiply(x.t(), dy, offs=ends),
        }[part]
        return self.time(function, 2.0 * of.rows * into * out_of) | {"same_as": name}

    def time_experts(self, of: Any, name: str) -> Row:
        """Time the experts of a layer, forward and backward, by transformers' Mixtral implementation."""
        from training_hf import config_of

        a = CATALOGUE["olmoe-1b-7b"].architecture.replace(
            model_dim=of.width, num_experts=of.experts, top_k=of.top_k, expert_hidden=of.hidden, num_layers=1,
            vocab_size=256, num_heads=2, num_kv_heads=2, head_dim=16,
        )  # fmt: skip
        model = self._model(config_of(dump(a)))
        experts = next(module for module in model.modules() if hasattr(module, "gate_up_proj"))
        x, dy = self.normal(of.tokens, of.width).requires_grad_(), self.normal(of.tokens, of.width)
        scores = self.torch.rand(of.tokens, of.experts, device=self.device)
        weights, chosen = scores.topk(of.top_k)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype).requires_grad_()

        def both() -> None:
            experts(x, chosen, weights).backward(dy)
            for leaf in (x, weights, *experts.parameters()):
                leaf.grad = None

        return self.time(both, 18.0 * of.rows * of.width * of.hidden) | {"same_as": name}

    def time_step(self, cases: Cases, has_checkpointing: bool) -> Row:
        """Time a step on the shape and batch that the stage ``steps`` measured, with PyTorch's fused AdamW."""
        from training_hf import config_of

        ours = list(cases.others("steps").values())
        if not ours:
            raise LeftOut("the stage steps has measured no step to compare with")
        a = CATALOGUE["olmoe-1b-7b"].architecture.replace(num_layers=ours[0]["layers"])
        sequences, length = 8, 4096
        if self.is_dry:
            sequences, length = 4, 32
            a = a.replace(vocab_size=257, model_dim=32, num_heads=4, num_kv_heads=4, head_dim=8, num_experts=4,
                          top_k=2, expert_hidden=16)  # fmt: skip
        model = self._model(config_of(dump(a))).train()
        if has_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        tokens = self.torch.randint(0, int(a.vocab_size), (sequences, length), device=self.device)
        optimizer = self.torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)

        def step() -> None:
            model(input_ids=tokens, labels=tokens).loss.backward()
            self.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        row = self.time(step)
        peak = None if self.device == "cpu" else self.torch.cuda.max_memory_allocated() / 1e9
        return row | {"tokens_per_second": 1e3 * tokens.numel() / row["milliseconds"], "peak_gigabytes": peak,
                      "same_as": "step"}  # fmt: skip

    def _model(self, config: Any) -> Any:
        import transformers  # pyright: ignore[reportMissingImports]

        self.clear()
        with self.torch.device(self.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=self.torch.bfloat16)
        model.set_experts_implementation("grouped_mm")
        return model
