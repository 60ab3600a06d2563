"""The function that is trained: one frozen description, read by the model, the laws and the accounting.

Everything here changes the function; how it is computed (types, sharding, dispatch) lives in ``moejax.model.runtime``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

Number = Any
"""An int when the model is built; a float or a traced array when the design is optimised."""


def if_set(size: Number, then: Number, otherwise: Number) -> Number:
    """``then`` where ``size`` is not 0, else ``otherwise``: plain numbers stay plain, traced ones are selected."""
    if isinstance(size, (int, float)):
        return then if size else otherwise
    return jnp.where(size == 0, otherwise, then)


def _static(default: Any) -> Any:
    return field(default=default, metadata={"static": True})


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer whose feed-forward layers are dense or mixtures of SwiGLU experts.

    ``num_experts = 0`` is a dense model. With experts, the first ``num_dense_layers`` layers keep a dense
    feed-forward of width ``dense_hidden`` and every other layer is a mixture of ``num_experts`` routed experts, of
    which ``top_k`` serve a token, beside ``num_shared_experts`` that serve every token.

    The numeric fields are leaves of a pytree: ``jax.grad`` of a count or of a predicted loss with respect to a whole
    Architecture is a design's sensitivity. Names, switches and constants are static.
    """

    vocab_size: Number
    model_dim: Number
    num_layers: Number
    num_heads: Number
    num_kv_heads: Number
    head_dim: Number
    dense_hidden: Number = 0
    """Width of a dense feed-forward layer; 0 if the model has none."""
    num_dense_layers: Number = 0
    """Layers, counted from the input, that stay dense in a model with experts."""
    num_experts: Number = 0
    """Routed experts per mixture layer; 0 for a dense model."""
    top_k: Number = 0
    """Routed experts that serve one token."""
    expert_hidden: Number = 0
    """Width of one routed expert."""
    num_shared_experts: Number = 0
    """Experts that serve every token."""
    shared_hidden: Number = 0
    """Width of one shared expert; 0 means as wide as a routed one."""

    query_latent_dim: Number = 0
    """Multi-head latent attention: rank of the query compression; 0 for none."""
    kv_latent_dim: Number = 0
    """Multi-head latent attention: rank of the key-value compression; 0 means grouped-query attention."""
    rope_head_dim: Number = 0
    """Multi-head latent attention: the part of a head that carries positions, beside ``head_dim`` without."""
    value_head_dim: Number = 0
    """Width of a value head; 0 means ``head_dim``."""

    router: str = _static("softmax_topk")
    """A key of ``moejax.routing.ROUTERS``."""
    capacity_factor: float | None = _static(None)
    """Assignments an expert takes at most, as a multiple of the balanced load; None drops nothing."""
    shared_expert_gate: bool = _static(False)
    """Whether a learnt sigmoid gate scales the shared experts' output (Qwen2-MoE)."""
    qk_norm: bool = _static(False)
    """RMSNorm on queries and keys, per head."""
    attention_bias: bool = _static(False)
    """Biases on the query, key and value projections."""
    attention_output_bias: bool = _static(False)
    """A bias on the attention's output projection."""
    attention_sinks: bool = _static(False)
    """One learnt sink logit per head (gpt-oss)."""
    router_bias: bool = _static(False)
    """A bias, or a score correction, per expert in the router."""
    expert_bias: bool = _static(False)
    """Biases in the experts' projections (gpt-oss)."""
    tied_embeddings: bool = _static(True)
    """Whether the unembedding is the transposed embedding."""
    rope_theta: float = _static(10_000.0)
    norm_epsilon: float = _static(1e-6)

    @property
    def is_moe(self) -> bool:
        """Whether any layer has routed experts."""
        return bool(self.num_experts)

    @property
    def num_moe_layers(self) -> Number:
        """Layers with routed experts."""
        return if_set(self.num_experts, self.num_layers - self.num_dense_layers, 0)

    @property
    def shared_width(self) -> Number:
        """Width of one shared expert, whether given or taken from the routed ones."""
        return if_set(self.shared_hidden, self.shared_hidden, self.expert_hidden)

    @property
    def value_width(self) -> Number:
        """Width of one value head."""
        return if_set(self.value_head_dim, self.value_head_dim, self.head_dim)

    def replace(self, **changes: Any) -> Architecture:
        """The same architecture with some fields changed."""
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """Raise ``ValueError``, naming field, value, rule and remedy, if no such model can be built."""
        for name in _DIMENSIONS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} is {value!r}; a model is built from whole numbers that are not negative.")
        for name in ("vocab_size", "model_dim", "num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads} and num_kv_heads is {self.num_kv_heads}; every key-value head serves "
                f"the same number of query heads, so num_kv_heads must divide num_heads."
            )
        if not self.kv_latent_dim and self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; rotary positions turn pairs, so it must be even.")
        if self.num_dense_layers > self.num_layers:
            raise ValueError(
                f"num_dense_layers is {self.num_dense_layers} but the model has num_layers = {self.num_layers}; "
                f"lower num_dense_layers."
            )
        if self.is_moe:
            self._check_experts()
        elif self.top_k or self.num_shared_experts:
            raise ValueError(
                f"top_k is {self.top_k} and num_shared_experts is {self.num_shared_experts}, but num_experts is 0; "
                f"a dense model has neither: set num_experts, or set both to 0."
            )
        if (not self.is_moe or self.num_dense_layers) and self.dense_hidden < 1:
            raise ValueError("The model has dense feed-forward layers but dense_hidden is 0; set dense_hidden.")

    def _check_experts(self) -> None:
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k is {self.top_k} and num_experts is {self.num_experts}; a token is served by at least one and "
                f"at most all routed experts: lower top_k or raise num_experts."
            )
        if self.expert_hidden < 1:
            raise ValueError("num_experts is set but expert_hidden is 0; set the width of one expert.")
        if self.num_dense_layers == self.num_layers:
            raise ValueError(
                f"num_dense_layers is {self.num_dense_layers}, as many as num_layers, so no layer has the "
                f"{self.num_experts} experts; lower num_dense_layers or set num_experts to 0."
            )
        if self.capacity_factor is not None and not self.capacity_factor > 0:
            raise ValueError(
                f"capacity_factor is {self.capacity_factor}; give a positive number, or None to drop none."
            )


_DIMENSIONS = tuple(f.name for f in dataclasses.fields(Architecture) if not f.metadata.get("static"))
jax.tree_util.register_dataclass(
    Architecture,
    data_fields=list(_DIMENSIONS),
    meta_fields=[f.name for f in dataclasses.fields(Architecture) if f.metadata.get("static")],
)
