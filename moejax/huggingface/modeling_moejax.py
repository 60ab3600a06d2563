"""PyTorch implementation of the models of moejax, with the interface of Hugging Face transformers.

``moejax convert --to hf`` copies this file into the folder of a model for which transformers has no class. The file
depends on torch and transformers 5 only. ``architecture`` in config.json has the fields of moejax's ``Architecture``.

Shapes: B batch, T tokens, S keys, D model_dim, H heads, G key-value heads, K head_dim, R rope_head_dim, N = B·T.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "model_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "tie_word_embeddings": "tied_embeddings",
}
"""Options that transformers reads from every config, and their fields of ``architecture``."""

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""Name of the key-value cache in outputs. transformers 5.24 renamed ``past_key_values`` to ``cache``."""


class MoejaxConfig(PreTrainedConfig):
    """Configuration that holds the fields of an ``Architecture``."""

    model_type = "moejax"

    def __init__(self, architecture: dict[str, Any] | None = None, **options: object):
        self.architecture = architecture or {}
        sizes = {name: self.architecture.get(field) for name, field in SIZES.items()}
        super().__init__(**{**sizes, **options})


def layer_kinds(a: SimpleNamespace) -> list[tuple[bool, int]]:
    """Return for each layer whether it has experts, and the size of its attention window (0: unlimited)."""
    between = a.num_layers - a.num_dense_layers - a.num_last_dense_layers
    kinds = "D" * a.num_dense_layers + (a.layer_pattern * between)[:between] + "D" * a.num_last_dense_layers
    windows = (a.window_pattern * a.num_layers)[: a.num_layers]
    pairs = zip(kinds, windows, strict=True)
    return [(a.num_experts > 0 and kind == "E", a.sliding_window if w == "W" else 0) for kind, w in pairs]


def rotary_frequencies(a: SimpleNamespace) -> tuple[Tensor, float]:
    """Return the rotation of each channel pair in radians per token, and the scale of rotated vectors."""
    dim = a.rope_head_dim if a.kv_latent_dim else int(a.head_dim * a.rotary_fraction)
    frequency = a.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if a.rope_scaling is None:
        return frequency.float(), 1.0
    s, scale = SimpleNamespace(**a.rope_scaling), 1.0
    kept = torch.zeros_like(frequency)
    if s.kind == "llama3":
        turns = s.original_length * frequency / (2 * math.pi)
        kept = ((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)).clamp(0, 1)
    elif s.kind == "yarn":
        ends = [math.log(s.original_length / (turns * 2 * math.pi)) for turns in (s.beta_fast, s.beta_slow)]
        low, high = (dim * end / (2 * math.log(a.rope_theta)) for end in ends)
        if s.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        kept = 1 - ((torch.arange(dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
        scale = yarn_scale(s.factor, 1.0)
        if s.mscale and s.mscale_all_dim:
            scale = yarn_scale(s.factor, s.mscale) / yarn_scale(s.factor, s.mscale_all_dim)
    return (frequency / s.factor * (1 - kept) + frequency * kept).float(), scale


def yarn_scale(factor: float, mscale: float) -> float:
    """Return YaRN's scale of rotated vectors if the sequence length is extended by ``factor``."""
    return 0.1 * mscale * math.log(factor) + 1.0


def rotate(x: Tensor, angles: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotate the pairs (i, i + half) of the first channels of [B, heads, T, dim]. ``angles`` holds cosines and sines of
    the angles, [B, 1, T, half]."""
    if angles is None:
        return x
    cos, sin = angles
    first, second, rest = x.split([cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    pairs = first.float() * cos - second.float() * sin, second.float() * cos + first.float() * sin
    return torch.cat([*(half.to(x.dtype) for half in pairs), rest], dim=-1)


def alibi_slopes(heads: int) -> Tensor:
    """Return the score penalty of each head per token of distance."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes)


class MoejaxAttention(nn.Module):
    """Causal attention; subclasses compute queries, keys and values."""

    def __init__(self, a: SimpleNamespace, layer: int):
        super().__init__()
        self.a, self.layer, self.value_dim = a, layer, a.value_head_dim or a.head_dim
        self.scale = 1 / math.sqrt(a.head_dim)
        self.o_proj = nn.Linear(a.num_heads * self.value_dim, a.model_dim, bias=a.attention_output_bias)
        if a.attention_sinks:
            self.sinks = nn.Parameter(torch.zeros(a.num_heads))

    def forward(
        self, x: Tensor, seen: Tensor, angles: tuple[Tensor, Tensor] | None, cache: DynamicCache | None
    ) -> Tensor:
        """Apply the layer to [B, T, D]; ``seen`` [B or 1, 1, T, S] is True for the keys that a query attends to."""
        query, key, value = self.project(x, angles, cache)
        key, value = (y.repeat_interleave(self.a.num_heads // y.shape[1], dim=1) for y in (key, value))
        if self.a.attention_sinks or self.a.positions == "alibi":
            mixed = self.mix(query, key, value, seen)
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=self.scale)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
        """Compute attention with score penalties and sink logits, in float32."""
        scores = query.float() @ key.float().transpose(2, 3) * self.scale
        if self.a.positions == "alibi":
            queries, keys = seen.shape[-2:]
            places = torch.arange(keys, device=query.device)
            distance = places[keys - queries :, None] - places
            scores = scores - alibi_slopes(self.a.num_heads).to(query.device)[:, None, None] * distance
        scores = scores.masked_fill(~seen, torch.finfo(torch.float32).min)
        if self.a.attention_sinks:
            sinks = self.sinks.float()[:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        return scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype) @ value


class MoejaxGroupedQueryAttention(MoejaxAttention):
    """Attention in which several query heads share a key-value head."""

    def __init__(self, a: SimpleNamespace, layer: int):
        super().__init__(a, layer)
        self.q_proj = nn.Linear(a.model_dim, a.num_heads * a.head_dim, bias=a.attention_bias)
        self.k_proj = nn.Linear(a.model_dim, a.num_kv_heads * a.head_dim, bias=a.attention_bias)
        self.v_proj = nn.Linear(a.model_dim, a.num_kv_heads * self.value_dim, bias=a.attention_bias)
        if a.qk_norm:
            heads, kv_heads = (a.num_heads, a.num_kv_heads) if a.qk_norm_all_heads else (1, 1)
            self.q_norm = nn.RMSNorm(heads * a.head_dim, eps=a.norm_epsilon)
            self.k_norm = nn.RMSNorm(kv_heads * a.head_dim, eps=a.norm_epsilon)

    def project(
        self, x: Tensor, angles: tuple[Tensor, Tensor] | None, cache: DynamicCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, K], and keys and values of all tokens [B, G, S, ...]."""
        a = self.a
        query, key = self.q_proj(x), self.k_proj(x)
        if a.qk_norm_all_heads:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (y.unflatten(-1, (-1, a.head_dim)) for y in (query, key))
        if a.qk_norm and not a.qk_norm_all_heads:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = (rotate(y.transpose(1, 2), angles) for y in (query, key))
        value = self.v_proj(x).unflatten(-1, (-1, self.value_dim)).transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, self.layer)
        return query, key, value


class MoejaxLatentAttention(MoejaxAttention):
    """Multi-head latent attention, which caches one latent vector and one rotated key per token."""

    def __init__(self, a: SimpleNamespace, layer: int):
        super().__init__(a, layer)
        self.scale = 1 / math.sqrt(a.head_dim + a.rope_head_dim)
        if a.rope_scaling is not None:
            self.scale *= yarn_scale(a.rope_scaling["factor"], a.rope_scaling["mscale_all_dim"]) ** 2
        width = a.num_heads * (a.head_dim + a.rope_head_dim)
        if a.query_latent_dim:
            self.q_a_proj = nn.Linear(a.model_dim, a.query_latent_dim, bias=a.attention_bias)
            self.q_a_layernorm = nn.RMSNorm(a.query_latent_dim, eps=a.norm_epsilon)
            self.q_b_proj = nn.Linear(a.query_latent_dim, width, bias=False)
        else:
            self.q_proj = nn.Linear(a.model_dim, width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(a.model_dim, a.kv_latent_dim + a.rope_head_dim, bias=a.attention_bias)
        self.kv_a_layernorm = nn.RMSNorm(a.kv_latent_dim, eps=a.norm_epsilon)
        self.kv_b_proj = nn.Linear(a.kv_latent_dim, a.num_heads * (a.head_dim + self.value_dim), bias=False)

    def project(
        self, x: Tensor, angles: tuple[Tensor, Tensor] | None, cache: DynamicCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, K + R], and keys and values of all tokens [B, H, S, ...]."""
        a = self.a
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if a.query_latent_dim else self.q_proj(x)
        query = query.unflatten(-1, (a.num_heads, -1)).transpose(1, 2)
        plain, rotated = query.split([a.head_dim, a.rope_head_dim], dim=-1)
        query = torch.cat([plain, rotate(rotated, angles)], dim=-1)
        latent, rope_key = self.kv_a_proj_with_mqa(x).split([a.kv_latent_dim, a.rope_head_dim], dim=-1)
        latent, rope_key = self.kv_a_layernorm(latent)[:, None], rotate(rope_key[:, None], angles)
        if cache is not None:
            latent, rope_key = cache.update(latent, rope_key, self.layer)
        both = self.kv_b_proj(latent[:, 0]).unflatten(-1, (a.num_heads, -1)).transpose(1, 2)
        key, value = both.split([a.head_dim, self.value_dim], dim=-1)
        return query, torch.cat([key, rope_key.expand(-1, a.num_heads, -1, -1)], dim=-1), value


class MoejaxFeedForward(nn.Module):
    """Dense SwiGLU feed-forward, also for shared experts."""

    def __init__(self, model_dim: int, hidden: int):
        super().__init__()
        self.gate_proj = nn.Linear(model_dim, hidden, bias=False)
        self.up_proj = nn.Linear(model_dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (silu(x·gate) * x·up)·down."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MoejaxRouter(nn.Module):
    """Router that chooses each token's experts. It computes in float32, so that rounding does not change the choice."""

    def __init__(self, a: SimpleNamespace):
        super().__init__()
        self.a = a
        self.weight = nn.Parameter(torch.zeros(a.num_experts, a.model_dim))
        self.bias = nn.Parameter(torch.zeros(a.num_experts)) if a.router_bias else None
        if a.expert_bias:
            self.register_buffer("e_score_correction_bias", torch.zeros(a.num_experts, dtype=torch.float32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of tokens [N, D] and their weights, both [N, top_k]. Unused slots have weight 0."""
        a = self.a
        logits = F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        softmax_last = a.router in ("topk_softmax", "noisy_topk")
        if softmax_last:
            scores = logits
        else:
            scores = logits.sigmoid() if a.router in ("sigmoid_topk", "group_limited") else logits.softmax(dim=-1)
        ranked = scores + self.e_score_correction_bias.float() if a.expert_bias else scores
        if a.router == "group_limited":
            grouped = ranked.unflatten(-1, (a.num_groups, -1))
            best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
            left_out = torch.ones_like(best).scatter(-1, best.topk(a.top_k_groups, dim=-1).indices, 0.0).bool()
            ranked = grouped.masked_fill(left_out[..., None], -math.inf).flatten(-2)
        expert = ranked.topk(a.top_k, dim=-1).indices
        weight = scores.gather(-1, expert)
        if softmax_last:
            weight = weight.softmax(dim=-1)
        elif a.router == "top_p":
            weight = weight.where(weight.cumsum(dim=-1) - weight < a.threshold, 0.0)
        elif a.norm_topk_prob and a.router != "switch":
            weight = weight / (weight.sum(dim=-1, keepdim=True) + 1e-20)
        return expert, weight * a.routed_scaling_factor


class MoejaxExperts(nn.Module):
    """Routed experts of one layer, with their matrices in one tensor each."""

    def __init__(self, a: SimpleNamespace):
        super().__init__()
        self.is_clamped = a.activation == "clamped_swiglu"
        self.gate_up_proj = nn.Parameter(torch.zeros(a.num_experts, 2 * a.expert_hidden, a.model_dim))
        self.down_proj = nn.Parameter(torch.zeros(a.num_experts, a.model_dim, a.expert_hidden))
        if a.expert_mlp_bias:
            self.gate_up_proj_bias = nn.Parameter(torch.zeros(a.num_experts, 2 * a.expert_hidden))
            self.down_proj_bias = nn.Parameter(torch.zeros(a.num_experts, a.model_dim))
        else:
            self.gate_up_proj_bias = self.down_proj_bias = None

    def forward(self, x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
        """Return each token's weighted sum of its experts' outputs."""
        y = torch.zeros_like(x, dtype=torch.float32)
        for e in expert.unique().tolist():
            token, slot = torch.where((expert == e) & (weight != 0))
            bias_up, bias_down = (None if b is None else b[e] for b in (self.gate_up_proj_bias, self.down_proj_bias))
            gate, up = F.linear(x[token], self.gate_up_proj[e], bias_up).float().chunk(2, dim=-1)
            if self.is_clamped:
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
            else:
                hidden = F.silu(gate) * up
            output = F.linear(hidden.to(x.dtype), self.down_proj[e], bias_down).float()
            y.index_add_(0, token, output * weight[token, slot, None])
        return y.to(x.dtype)


class MoejaxMixture(nn.Module):
    """Routed experts, and shared experts that process every token."""

    def __init__(self, a: SimpleNamespace):
        super().__init__()
        self.router, self.experts = MoejaxRouter(a), MoejaxExperts(a)
        hidden = a.num_shared_experts * (a.shared_hidden or a.expert_hidden)
        self.shared_experts = MoejaxFeedForward(a.model_dim, hidden) if hidden else None
        self.shared_expert_gate = nn.Linear(a.model_dim, 1, bias=False) if a.shared_expert_gate else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to [B, T, D]."""
        flat = x.flatten(0, 1)
        y = self.experts(flat, *self.router(flat)).view_as(x)
        if self.shared_experts is None:
            return y
        shared = self.shared_experts(x)
        if self.shared_expert_gate is not None:
            shared = (shared.float() * self.shared_expert_gate(x).float().sigmoid()).to(x.dtype)
        return y + shared


class MoejaxLayer(nn.Module):
    """Attention, then a dense or mixture-of-experts feed-forward."""

    def __init__(self, a: SimpleNamespace, layer: int, has_experts: bool):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(a.model_dim, eps=a.norm_epsilon)
        self.self_attn = (MoejaxLatentAttention if a.kv_latent_dim else MoejaxGroupedQueryAttention)(a, layer)
        self.post_attention_layernorm = nn.RMSNorm(a.model_dim, eps=a.norm_epsilon)
        self.mlp = MoejaxMixture(a) if has_experts else MoejaxFeedForward(a.model_dim, a.dense_hidden)

    def forward(self, x: Tensor, *attention_inputs: object) -> Tensor:
        """Apply the layer to [B, T, D]."""
        x = x + self.self_attn(self.input_layernorm(x), *attention_inputs)
        return x + self.mlp(self.post_attention_layernorm(x))


class MoejaxPreTrainedModel(PreTrainedModel):
    """Base class of both models, with their settings for transformers."""

    config_class = MoejaxConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules: ClassVar = ["MoejaxLayer"]
    _keep_in_fp32_modules_strict: ClassVar = ["router"]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (MoejaxAttention, MoejaxRouter, MoejaxExperts)):
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                nn.init.normal_(tensor, std=0.0 if name.endswith(("bias", "sinks")) else 0.02)


class MoejaxModel(MoejaxPreTrainedModel):
    """The transformer without its output head."""

    def __init__(self, config: MoejaxConfig):
        super().__init__(config)
        self.a = a = SimpleNamespace(**config.architecture)
        self.embed_tokens = nn.Embedding(config.vocab_size, a.model_dim)
        kinds = layer_kinds(a)
        self.windows = [window for _, window in kinds]
        self.layers = nn.ModuleList(MoejaxLayer(a, layer, experts) for layer, (experts, _) in enumerate(kinds))
        self.norm = nn.RMSNorm(a.model_dim, eps=a.norm_epsilon)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **_: object,
    ) -> BaseModelOutputWithPast:
        """Return the normalized output of the last layer. ``attention_mask`` [B, S] is 0 for padding.
        ``past_key_values`` is the name of ``cache`` before transformers 5.24."""
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        past = 0 if cache is None else cache.get_seq_length()
        if position_ids is None:
            position_ids = torch.arange(past, past + x.shape[1], device=x.device)[None]
        angles = None
        if self.a.positions == "rope":
            frequency, scale = rotary_frequencies(self.a)
            angle = position_ids[:, None, :, None].float() * frequency.to(x.device)
            angles = angle.cos() * scale, angle.sin() * scale
        seen = {window: visible(x, past, window, attention_mask) for window in set(self.windows)}
        for layer, window in zip(self.layers, self.windows, strict=True):
            x = layer(x, seen[window], angles, cache)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), **{CACHE: cache})


def visible(x: Tensor, past: int, window: int, attention_mask: Tensor | None) -> Tensor:
    """Return which keys each query sees, [B or 1, 1, T, S]. Padding sees itself, so that no row is empty."""
    places = torch.arange(past + x.shape[1], device=x.device)
    distance = places[past:, None] - places
    seen = (distance >= 0)[None, None]
    if window:
        seen = seen & (distance < window)
    if attention_mask is not None:
        seen = (seen & attention_mask[:, None, None, :].bool()) | (distance == 0)
    return seen


class MoejaxForCausalLM(MoejaxPreTrainedModel, GenerationMixin):
    """The transformer with its output head."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: MoejaxConfig):
        super().__init__(config)
        self.model = MoejaxModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Modules of multi-token prediction follow the last layer; only training uses them.
        further = range(self.model.a.num_layers, self.model.a.num_layers + self.model.a.num_mtp_layers)
        self._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{number}\." for number in further]
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **options: object,
    ) -> CausalLMOutputWithPast:
        """Return logits of the last ``logits_to_keep`` tokens (0: all), and the loss if ``labels`` are given."""
        output = self.model(input_ids, **options)
        logits = self.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=logits.shape[-1])
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: output.get(CACHE)})
