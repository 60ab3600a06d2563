"""Describe the trained function: one frozen dataclass that the model, the laws and the accounting read.

All fields here change the function. Settings of its computation (types, sharding, dispatch) are in
``moejax.model.runtime``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp

from moejax.config import Rule, check_fields
from moejax.pytree import pytree
from moejax.ranges import (
    MOST_LAYERS,
    Epsilon,
    Groups,
    Layers,
    Length,
    Multiple,
    Number,
    NumberRange,
    OptionalSize,
    Positive,
    PositiveShare,
    Scale,
    Share,
    Size,
    whole,
)


def if_set(size: Number, then: Number, otherwise: Number) -> Number:
    """Return ``then`` if ``size`` is not 0, else ``otherwise``; sizes may be Python numbers or traced arrays."""
    if isinstance(size, (int, float)):
        return then if size else otherwise
    return jnp.where(size == 0, otherwise, then)


WEIGHTS_SUM_TO_CONSTANT: dict[str, str | None] = {
    "softmax_topk": "norm_topk_prob",
    "topk_softmax": None,
    "sigmoid_topk": "norm_topk_prob",
    "group_limited": "norm_topk_prob",
    "noisy_topk": None,
    "balanced": None,
    "random": None,
}
"""Routers whose weights can sum to the same number for every token, and the field that enables this (None: always)."""

FOR_DEBUGGING = frozenset({"balanced", "random"})
"""Routers that ignore their logits and never learn."""


def _static(default: Any) -> Any:
    return field(default=default, metadata={"static": True})


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Scaling of rotary frequencies for sequences longer than in pretraining.

    ``kind`` is a key of ``moejax.model.positions.SCALINGS``. The other fields are named as in published configuration
    files; each kind reads only some of them.
    """

    kind: str
    factor: Multiple
    """Ratio of the extended length to ``original_length``."""
    original_length: Length = 0
    """Sequence length of pretraining in tokens; ``linear`` does not need it."""
    beta_fast: Positive = 32.0
    """YaRN: number of rotations over ``original_length`` above which a frequency is unchanged."""
    beta_slow: Positive = 1.0
    """YaRN: number of rotations below which a frequency is divided by ``factor``."""
    low_freq_factor: Positive = 1.0
    """Llama 3: number of rotations over ``original_length`` below which a frequency is divided by ``factor``."""
    high_freq_factor: Positive = 4.0
    """Llama 3: number of rotations above which a frequency is unchanged."""
    mscale: Scale = 0.0
    """YaRN in DeepSeek: numerator of the scale of rotated queries and keys."""
    mscale_all_dim: Scale = 0.0
    """YaRN in DeepSeek: denominator of the scale of rotated queries and keys; its square scales the attention scores.
    """
    truncate: bool = True
    """YaRN: True to round the boundaries between frequencies to whole channels."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A decoder-only transformer whose feed-forward layers are dense or MoE layers of SwiGLU experts.

    ``num_experts = 0`` is a dense model. With experts, the first ``num_dense_layers`` and the last
    ``num_last_dense_layers`` layers keep a dense feed-forward of width ``dense_hidden``. The layers between follow
    ``layer_pattern``, by default all MoE layers with ``num_experts`` routed experts. Each token uses ``top_k`` of them
    and all ``num_shared_experts`` shared experts.

    The numeric fields are leaves of a pytree: ``jax.grad`` of a count or of a predicted loss with respect to a whole
    Architecture is a design's sensitivity. Names, switches and constants are static.
    """

    vocab_size: Size
    model_dim: Size
    num_layers: Annotated[Number, whole(1, MOST_LAYERS)]
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    dense_hidden: OptionalSize = 0
    """Width of a dense feed-forward layer; 0 if the model has none."""
    num_dense_layers: Layers = 0
    """Number of layers, counted from the input, that stay dense in a model with experts."""
    num_last_dense_layers: Layers = 0
    """Number of layers, counted from the output, that stay dense in a model with experts."""
    num_experts: OptionalSize = 0
    """Routed experts per MoE layer; 0 for a dense model."""
    top_k: OptionalSize = 0
    """Routed experts per token."""
    expert_hidden: OptionalSize = 0
    """Width of one routed expert."""
    num_shared_experts: OptionalSize = 0
    """Experts that process every token."""
    shared_hidden: OptionalSize = 0
    """Width of one shared expert; 0 means the width of a routed expert."""

    query_latent_dim: OptionalSize = 0
    """Multi-head latent attention: rank of the query compression; 0 for none."""
    kv_latent_dim: OptionalSize = 0
    """Multi-head latent attention: rank of the key-value compression; 0 means grouped-query attention."""
    rope_head_dim: OptionalSize = 0
    """Multi-head latent attention: width of a head's rotary part, in addition to its ``head_dim`` channels."""
    value_head_dim: OptionalSize = 0
    """Width of a value head; 0 means ``head_dim``."""
    num_mtp_layers: Layers = 0
    """Number of multi-token prediction modules (DeepSeek-V3's ``num_nextn_predict_layers``). The k-th predicts the
    token k after the next one. Only training computes them (``moejax.model.mtp``).
    """

    layer_pattern: str = _static("E")
    """Pattern of the layers between the first and the last dense ones, repeated as needed: E has experts, D is
    dense.
    """

    router: str = _static("softmax_topk")
    """A key of ``moejax.routing.ROUTERS``."""
    norm_topk_prob: bool = _static(True)
    """True to normalize the weights of a token's experts to sum to 1 before ``routed_scaling_factor``, in routers that
    support both. With ``top_k = 1`` the normalized weight is constant, and the router gets no gradient from the loss:
    set False to train.
    """
    routed_scaling_factor: Positive = _static(1.0)
    """Factor on the weights of a token's experts (DeepSeek)."""
    num_groups: Groups = _static(1)
    """``group_limited``: number of groups of neighboring experts."""
    top_k_groups: Groups = _static(1)
    """``group_limited``: number of groups whose experts a token may use."""
    threshold: PositiveShare = _static(0.4)
    """``top_p``: minimum total probability of a token's experts."""
    router_bias: bool = _static(False)
    """True for a trained bias per expert on the router's logits (gpt-oss)."""
    expert_bias: bool = _static(False)
    """True for a bias per expert that only affects the choice of experts. It is not a parameter: each step
    updates it from the expert loads, without a gradient (auxiliary-loss-free balancing; DeepSeek-V3).
    """
    capacity_factor: Positive | None = _static(None)
    """Maximum number of assignments of an expert, as a multiple of the balanced load; None disables dropping."""
    activation: str = _static("swiglu")
    """A key of ``moejax.routing.ACTIVATIONS``, for the experts; dense layers always use SwiGLU."""
    expert_mlp_bias: bool = _static(False)
    """True for biases in the experts' projections (gpt-oss)."""
    shared_expert_gate: bool = _static(False)
    """True to scale the shared experts' output by a learned sigmoid gate (Qwen2-MoE)."""

    positions: str = _static("rope")
    """A key of ``moejax.model.positions.POSITIONS``: rotary, ALiBi, or none."""
    rope_theta: Annotated[float, NumberRange(1, 1e12, without_low=True)] = _static(10_000.0)
    rotary_fraction: Share = _static(1.0)
    """Rotated share of each head (GLM-4.5: 0.5); multi-head latent attention uses ``rope_head_dim``."""
    rope_scaling: RopeScaling | None = field(default=None, metadata={"static": True})
    sliding_window: Length = _static(0)
    """Number of tokens that a token of a windowed layer attends to, itself included; 0 for all."""
    window_pattern: str = _static("W")
    """Pattern of windowed layers, repeated from the input: W has the window, F sees the full sequence (gpt-oss: WF)."""
    attention_sinks: bool = _static(False)
    """True for one learned sink logit per head (gpt-oss)."""
    attention_bias: bool = _static(False)
    """True for biases on the query, key and value projections; with latent attention, on the maps to the latents."""
    attention_output_bias: bool = _static(False)
    """True for a bias on the attention's output projection."""
    qk_norm: bool = _static(False)
    """True for RMSNorm on queries and keys, within each head."""
    qk_norm_all_heads: bool = _static(False)
    """True for one norm over all heads together, with ``qk_norm`` (OLMoE)."""
    norm_epsilon: Epsilon = _static(1e-6)
    tied_embeddings: bool = _static(True)
    """True if the unembedding is the transposed embedding."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda a: a.num_heads % a.num_kv_heads == 0,
            "num_heads is {self.num_heads} and num_kv_heads is {self.num_kv_heads}; every key-value head serves the "
            "same number of query heads, so num_kv_heads must divide num_heads.",
        ),
        Rule(
            lambda a: not a.kv_latent_dim or a.num_kv_heads == a.num_heads,
            "num_kv_heads is {self.num_kv_heads} and num_heads is {self.num_heads}; latent attention gives every "
            "query head its own key and value: make them equal.",
        ),
        Rule(
            lambda a: not a.kv_latent_dim or not (a.qk_norm or a.rotary_fraction != 1),
            "Latent attention supports neither qk_norm nor rotary_fraction; leave them out.",
        ),
        Rule(
            lambda a: a.kv_latent_dim or not (a.query_latent_dim or a.rope_head_dim),
            "query_latent_dim is {self.query_latent_dim} and rope_head_dim {self.rope_head_dim}, but kv_latent_dim is "
            "0; set it for latent attention, or leave all of them 0.",
        ),
        Rule(
            lambda a: a.positions != "rope" or a.rotary_dim % 2 == 0,
            "Rotary positions rotate pairs, so {self.rotary_dim} channels cannot be rotated: head_dim (with "
            "rotary_fraction), or rope_head_dim of latent attention, must be even.",
        ),
        Rule(
            lambda a: a.qk_norm or not a.qk_norm_all_heads,
            "qk_norm_all_heads is set without qk_norm; set both or neither.",
        ),
        Rule(
            lambda a: a.num_dense_layers + a.num_last_dense_layers <= a.num_layers,
            "num_dense_layers is {self.num_dense_layers} and num_last_dense_layers {self.num_last_dense_layers}, but "
            "the model has num_layers = {self.num_layers}; lower them.",
        ),
        Rule(
            lambda a: a.layer_pattern and not set(a.layer_pattern) - set("ED"),
            "layer_pattern is {self.layer_pattern!r}; write it with the letters E and D.",
        ),
        Rule(
            lambda a: a.window_pattern and not set(a.window_pattern) - set("WF"),
            "window_pattern is {self.window_pattern!r}; write it with the letters W and F.",
        ),
        Rule(
            lambda a: not a.is_moe or 1 <= a.top_k <= a.num_experts,
            "top_k is {self.top_k} and num_experts is {self.num_experts}; a token uses at least one and at most all "
            "routed experts: lower top_k or raise num_experts.",
        ),
        Rule(
            lambda a: not a.is_moe or a.expert_hidden,
            "num_experts is set but expert_hidden is 0; set the width of one expert.",
        ),
        Rule(
            lambda a: not a.is_moe or any(a.has_experts),
            "num_dense_layers is {self.num_dense_layers}, num_last_dense_layers {self.num_last_dense_layers} and "
            "layer_pattern {self.layer_pattern!r}, so no layer of {self.num_layers} has the {self.num_experts} "
            "experts; lower the dense layers or set num_experts to 0.",
        ),
        Rule(
            lambda a: a.is_moe or not (a.top_k or a.num_shared_experts),
            "top_k is {self.top_k} and num_shared_experts is {self.num_shared_experts}, but num_experts is 0; a dense "
            "model has neither: set num_experts, or set both to 0.",
        ),
        Rule(
            lambda a: a.num_shared_experts or not a.shared_expert_gate,
            "shared_expert_gate is set but num_shared_experts is 0; set num_shared_experts or leave the gate out.",
        ),
        Rule(
            lambda a: a.num_shared_experts or not a.shared_hidden,
            "shared_hidden is {self.shared_hidden}, but num_shared_experts is 0; set num_shared_experts or leave "
            "shared_hidden out.",
        ),
        Rule(
            lambda a: all(a.has_experts) or a.dense_hidden,
            "The model has dense feed-forward layers but dense_hidden is 0; set dense_hidden.",
        ),
    )
    """Conditions that a model must meet to be built."""

    @property
    def is_moe(self) -> bool:
        """True if any layer has routed experts."""
        return bool(self.num_experts)

    @property
    def has_experts(self) -> tuple[bool, ...]:
        """True for layers with routed experts, in order from the input; requires integer sizes."""
        first, last = self.num_dense_layers, self.num_last_dense_layers
        between = _repeated(self.layer_pattern, self.num_layers - first - last)
        return (False,) * first + tuple(self.is_moe and letter == "E" for letter in between) + (False,) * last

    @property
    def routed_layers(self) -> tuple[int, ...]:
        """Indices of the layers with routed experts, from the input. The indices of multi-token prediction modules
        follow the last layer's. Requires integer sizes.
        """
        further = range(self.num_layers, self.num_layers + self.num_mtp_layers) if self.is_moe else ()
        return (*(number for number, experts in enumerate(self.has_experts) if experts), *further)

    @property
    def weights_sum_to_constant(self) -> bool:
        """True if the weights of a token's experts sum to the same number for every token."""
        if self.router not in WEIGHTS_SUM_TO_CONSTANT:
            return False
        decides = WEIGHTS_SUM_TO_CONSTANT[self.router]
        return decides is None or getattr(self, decides)

    @property
    def fault_in_training(self) -> str:
        """Reason why the loss gives the routers no gradient, with the remedy; empty if the loss trains them."""
        chooses = self.is_moe and self.num_experts > 1 and self.router not in FOR_DEBUGGING
        if not chooses or self.top_k != 1 or not self.weights_sum_to_constant:
            return ""
        plain = self.with_plain_weights.router
        instead = "" if plain == self.router else f"router to {plain!r} and "
        return (
            f"top_k is 1 and router {self.router!r} normalizes weights, so the weight of a token's only expert is "
            f"constant and the loss gives the router no gradient. Set {instead}norm_topk_prob to False (the weight is "
            f"then the expert's probability), router to 'switch', or top_k to 2 or more."
        )

    @property
    def with_plain_weights(self) -> Architecture:
        """The same architecture without normalized expert weights."""
        if not self.weights_sum_to_constant or self.router in FOR_DEBUGGING:
            return self
        router = "softmax_topk" if WEIGHTS_SUM_TO_CONSTANT[self.router] is None else self.router
        return self.replace(router=router, norm_topk_prob=False)

    @property
    def without_mtp(self) -> Architecture:
        """The same architecture without multi-token prediction modules, as used outside of training."""
        return self.replace(num_mtp_layers=0)

    @property
    def mtp_block(self) -> Architecture:
        """The layer inside a multi-token prediction module, as a model of one layer. It has experts if any layer has,
        and full attention.
        """
        one = {"num_layers": 1, "num_dense_layers": 0, "num_last_dense_layers": 0, "num_mtp_layers": 0}
        return self.replace(**one, layer_pattern="E", sliding_window=0)

    @property
    def has_window(self) -> tuple[bool, ...]:
        """True for layers with windowed attention, in order from the input; requires integer sizes."""
        letters = _repeated(self.window_pattern, self.num_layers)
        return tuple(self.sliding_window > 0 and letter == "W" for letter in letters)

    @property
    def num_moe_layers(self) -> Number:
        """Number of layers with routed experts. For a non-integer depth: the pattern's share of the depth."""
        between = self.num_layers - self.num_dense_layers - self.num_last_dense_layers
        if isinstance(between, int):
            layers = _repeated(self.layer_pattern, between).count("E")
        else:
            layers = between * (self.layer_pattern.count("E") / len(self.layer_pattern))
        return if_set(self.num_experts, layers, 0)

    @property
    def num_windowed_layers(self) -> Number:
        """Number of layers with windowed attention. For a non-integer depth: the pattern's share of the depth."""
        if not self.sliding_window:
            return 0
        if isinstance(self.num_layers, int):
            return _repeated(self.window_pattern, self.num_layers).count("W")
        return self.num_layers * (self.window_pattern.count("W") / len(self.window_pattern))

    @property
    def shared_width(self) -> Number:
        """Width of one shared expert; by default the width of a routed expert."""
        return if_set(self.shared_hidden, self.shared_hidden, self.expert_hidden)

    @property
    def shared_experts_by_width(self) -> Number:
        """Number of shared experts in units of a routed expert's width: a shared expert of twice the width counts as 2.

        Laws of the number of experts count them this way (Zhao et al. 2025, Eqs. 2 and 3, where parameters are the
        total width of all experts).
        """
        if isinstance(self.shared_hidden, (int, float)) and not self.shared_hidden:
            return self.num_shared_experts
        routed = if_set(self.expert_hidden, self.expert_hidden, 1)
        return self.num_shared_experts * self.shared_width / routed

    @property
    def value_width(self) -> Number:
        """Width of one value head."""
        return if_set(self.value_head_dim, self.value_head_dim, self.head_dim)

    @property
    def rotary_dim(self) -> Number:
        """Number of channels of a head that rotary positions rotate."""
        rotated = self.head_dim * self.rotary_fraction
        return if_set(self.kv_latent_dim, self.rope_head_dim, int(rotated) if isinstance(rotated, float) else rotated)

    def replace(self, **changes: Any) -> Architecture:
        """Return the same architecture with some fields changed."""
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """Raise ``UserError`` with field, value, rule and remedy if the model cannot be built."""
        check_fields(self)


def _repeated(pattern: str, length: int) -> str:
    return (pattern * (length // len(pattern) + 1))[: max(length, 0)]


pytree(Architecture)
