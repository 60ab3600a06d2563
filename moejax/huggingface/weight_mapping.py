"""Map tensors of a checkpoint to moejax's stacked arrays. Each mapping is defined once and used in both directions.

This module also has the mappings that several families share: Llama's, experts, and DeepSeek's latent attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moejax.architecture import Architecture
from moejax.model.transformer import MTP_LAYERS
from moejax.weights.folder import EXPERT_BIAS, Parameter, parameters

JOINED = "*"


@dataclass(frozen=True)
class WeightMapping:
    """Mapping of a checkpoint tensor (or one per layer, or one per layer and expert) to the moejax arrays that it
    holds."""

    theirs: str
    """Name of the tensor, with ``{layer}`` counted from the input and ``{expert}`` for separate experts.
    ``{mtp_layer}`` is the layer number of a multi-token prediction module; these modules follow the last layer."""
    layout: str
    """Axes of the tensor by moejax's logical names, as in ``(heads head_dim) embed``. ``*`` is the last axis of the
    moejax array, or of several joined arrays."""
    ours: tuple[str, ...]
    """Names of the arrays within the stack of layers; ``NAME[0]`` is the first of two matrices in one array."""
    alternating: int = 0
    """Number of channels at the end of the last axis that alternate in the tensor but form two halves in moejax."""
    copied: str = ""
    """Reason why the tensor is an optional copy of another, and the remedy if it differs; empty if it is no copy."""
    is_written: bool = True
    """True if ``--to hf`` writes the tensor."""

    @property
    def by_expert(self) -> bool:
        """Return whether the tensor belongs to routed experts, separate or joined."""
        return "{expert}" in self.theirs or "expert" in self.layout.split()


@dataclass(frozen=True)
class Pair:
    """A checkpoint tensor, or one expert of it, and the slices of moejax arrays with the same values."""

    theirs: str
    index: tuple[int, ...]
    """Index of the first axes of the checkpoint tensor."""
    whole: tuple[int, ...]
    """Shape of the checkpoint tensor."""
    ours: tuple[tuple[str, tuple[int, ...]], ...]
    """Names of the arrays and indices in their stacks: layer, expert, matrix."""
    layout: str
    """Axes of the checkpoint tensor, arrow, axes of the moejax array."""
    sizes: Mapping[str, int]
    widths: tuple[int, ...]
    """Width of the last axis of each moejax array."""
    alternating: int
    copied: str
    is_written: bool

    def to_ours(self, theirs: np.ndarray) -> list[np.ndarray]:
        """Return the slices of the moejax arrays from the checkpoint tensor."""
        joined = rearrange(theirs, self.layout, self.sizes)
        if self.alternating:
            joined = joined[..., self._order()]
        return np.split(joined, np.cumsum(self.widths)[:-1], axis=-1)

    def to_theirs(self, ours: Sequence[np.ndarray]) -> np.ndarray:
        """Return the checkpoint tensor from the slices of the moejax arrays: the inverse of ``to_ours``."""
        joined = ours[0] if len(ours) == 1 else np.concatenate(ours, axis=-1)
        if self.alternating:
            joined = joined[..., np.argsort(self._order())]
        left, right = self.layout.split("->")
        return rearrange(joined, f"{right}->{left}", self.sizes)

    def _order(self) -> np.ndarray:
        """Return the indices that reorder the checkpoint's channels for moejax: alternating ones form two halves."""
        channels = np.arange(sum(self.widths))
        start = len(channels) - self.alternating
        return np.concatenate([channels[:start], channels[start::2], channels[start + 1 :: 2]])


def pairs(architecture: Architecture, mappings: Iterable[WeightMapping]) -> list[Pair]:
    """Return a pair for every mapping of a family and every layer and expert of an architecture, in layer order.

    Mappings to arrays that the architecture lacks are omitted: biases, dense layers, shared experts.
    """
    known, mappings = parameters(architecture), list(mappings)
    in_modules = [mapping for mapping in mappings if "{mtp_layer}" in mapping.theirs]
    in_layers = [mapping for mapping in mappings if "{layer}" in mapping.theirs]
    others = [mapping for mapping in mappings if mapping not in (*in_modules, *in_layers)]
    paired = list(_of_layer(known, others, lambda name: (name, ()), -1))
    counts = {"dense_layers": 0, "moe_layers": 0}
    for layer, experts in enumerate(architecture.has_experts):
        stack = "moe_layers" if experts else "dense_layers"
        place = counts[stack]
        paired += _of_layer(known, in_layers, lambda name, at=(stack, place): (f"{at[0]}.{name}", (at[1],)), layer)
        counts[stack] += 1
    for module in range(architecture.num_mtp_layers):
        layer = architecture.num_layers + module

        def in_block(name: str, module: int = module) -> Located:
            if f"moe_layers.{name}" == EXPERT_BIAS:
                return EXPERT_BIAS, (counts["moe_layers"] + module,)
            return f"{MTP_LAYERS}.block.{name}", (module,)

        def around_block(name: str, module: int = module) -> Located:
            return name, (module,) if name.startswith(MTP_LAYERS) else ()

        paired += _of_layer(known, in_modules, around_block, layer)
        paired += _of_layer(known, in_layers, in_block, layer)
    return paired


Located = tuple[str, tuple[int, ...]]
"""Name of an array and index in its stack."""


def _of_layer(
    known: Mapping[str, Parameter],
    mappings: Iterable[WeightMapping],
    locate: Callable[[str], Located],
    layer: int,
) -> Iterator[Pair]:
    for mapping in mappings:
        named = [_place(name) for name in mapping.ours]
        ours = [(*locate(name), matrix) for name, matrix in named]
        if all(name in known and ("expert" in known[name].axes) == mapping.by_expert for name, _, _ in ours):
            index = ours[0][1]
            yield from _pairs(known, mapping, [(name, matrix) for name, _, matrix in ours], index, layer)


def _place(written: str) -> tuple[str, tuple[int, ...]]:
    name, _, number = written.partition("[")
    return name, (int(number[:-1]),) if number else ()


def _pairs(
    known: Mapping[str, Parameter],
    mapping: WeightMapping,
    ours: list[tuple[str, tuple[int, ...]]],
    index: tuple[int, ...],
    layer: int,
) -> Iterator[Pair]:
    name, matrix = ours[0]
    parameter = known[name]
    inner = parameter.axes[len(index) + mapping.by_expert + len(matrix) :]
    sizes = dict(zip(parameter.axes, parameter.shape, strict=True))
    widths = tuple(known[name].shape[-1] for name, _ in ours)
    joined = mapping.layout.replace(JOINED, inner[-1])
    sizes[inner[-1]] = sum(widths)
    groups = axes(joined)
    # If all experts form one tensor, each expert is read and written separately.
    together = groups[0] == ["expert"]
    whole = tuple(math.prod(sizes[name] for name in group) for group in groups)
    one = joined.split(maxsplit=1)[1] if together else joined
    for expert in range(sizes["expert"] if mapping.by_expert else 1):
        at = (*index, expert) if mapping.by_expert else index
        yield Pair(
            theirs=mapping.theirs.format(layer=layer, mtp_layer=layer, expert=expert),
            index=(expert,) if together else (),
            whole=whole,
            ours=tuple((name, (*at, *matrix)) for name, matrix in ours),
            layout=f"{one} -> {' '.join(inner)}",
            sizes=sizes,
            widths=widths,
            alternating=mapping.alternating,
            copied=mapping.copied,
            is_written=mapping.is_written,
        )


def rearrange(array: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Rearrange an array to another layout. A group in brackets is one axis whose first name varies slowest.

    ``()`` is an axis of size 1. Swapping the sides of the arrow gives the inverse.
    """
    left, right = (axes(side) for side in pattern.split("->"))
    names = [name for group in left for name in group]
    assert sorted(names) == sorted(name for group in right for name in group), pattern
    apart = array.reshape([sizes[name] for name in names])
    order = [names.index(name) for group in right for name in group]
    return apart.transpose(order).reshape([math.prod(sizes[name] for name in group) for group in right])


def axes(side: str) -> list[list[str]]:
    """Return the groups of names on one side of a pattern."""
    groups, inside = [], False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word in "()":
            inside = word == "("
            groups += [[]] if inside else []
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


LAYER = "model.layers.{layer}."


def model(tied: bool) -> list[WeightMapping]:
    """Return the mappings of everything outside attention and feed-forward."""
    is_tied = "tie_word_embeddings is true; if the head has its own weights, set tie_word_embeddings to false"
    return [
        WeightMapping("model.embed_tokens.weight", "vocab embed", ("embedding",)),
        WeightMapping(LAYER + "input_layernorm.weight", "embed", ("attention_norm",)),
        WeightMapping(LAYER + "post_attention_layernorm.weight", "embed", ("feed_forward_norm",)),
        WeightMapping("model.norm.weight", "embed", ("final_norm",)),
        WeightMapping("lm_head.weight", "vocab embed", ("embedding",), copied=is_tied, is_written=False)
        if tied
        else WeightMapping("lm_head.weight", "vocab embed", ("unembedding",)),
    ]


_ATTENTION = LAYER + "self_attn."

SINKS = WeightMapping(_ATTENTION + "sinks", "heads", ("attention.sinks",))

ATTENTION = [
    WeightMapping(_ATTENTION + "q_proj.weight", "(heads head_dim) embed", ("attention.query",)),
    WeightMapping(_ATTENTION + "k_proj.weight", "(kv_heads head_dim) embed", ("attention.key",)),
    WeightMapping(_ATTENTION + "v_proj.weight", "(kv_heads value_dim) embed", ("attention.value",)),
    WeightMapping(_ATTENTION + "o_proj.weight", "embed (heads value_dim)", ("attention.output",)),
    WeightMapping(_ATTENTION + "q_proj.bias", "(heads head_dim)", ("attention.query_bias",)),
    WeightMapping(_ATTENTION + "k_proj.bias", "(kv_heads head_dim)", ("attention.key_bias",)),
    WeightMapping(_ATTENTION + "v_proj.bias", "(kv_heads value_dim)", ("attention.value_bias",)),
    WeightMapping(_ATTENTION + "o_proj.bias", "embed", ("attention.output_bias",)),
    SINKS,
]
"""Mappings of grouped-query attention."""

QK_NORM = [
    WeightMapping(_ATTENTION + "q_norm.weight", "head_dim", ("attention.query_norm",)),
    WeightMapping(_ATTENTION + "k_norm.weight", "head_dim", ("attention.key_norm",)),
]
"""Mappings of norms within each head."""

QK_NORM_ALL_HEADS = [
    WeightMapping(_ATTENTION + "q_norm.weight", "(heads head_dim)", ("attention.query_norm",)),
    WeightMapping(_ATTENTION + "k_norm.weight", "(kv_heads head_dim)", ("attention.key_norm",)),
]
"""Mappings of norms over all heads."""


def latent_attention(query_latents: bool, rope_head_dim: int) -> list[WeightMapping]:
    """Return the mappings of DeepSeek's attention, whose alternating rotary channels form two halves in moejax."""
    turned = rope_head_dim
    queries = (
        [
            WeightMapping(_ATTENTION + "q_a_proj.weight", "latent embed", ("attention.query_down",)),
            WeightMapping(_ATTENTION + "q_a_proj.bias", "latent", ("attention.query_down_bias",)),
            WeightMapping(_ATTENTION + "q_a_layernorm.weight", "latent", ("attention.query_latent_norm",)),
            WeightMapping(_ATTENTION + "q_b_proj.weight", "(heads *) latent", ("attention.query",), alternating=turned),
        ]
        if query_latents
        else [WeightMapping(_ATTENTION + "q_proj.weight", "(heads *) embed", ("attention.query",), alternating=turned)]
    )
    down = ("attention.latent_down", "attention.rope_key")
    down_bias = ("attention.latent_down_bias", "attention.rope_key_bias")
    return [
        *queries,
        WeightMapping(_ATTENTION + "kv_a_proj_with_mqa.weight", "* embed", down, alternating=turned),
        WeightMapping(_ATTENTION + "kv_a_proj_with_mqa.bias", "*", down_bias, alternating=turned),
        WeightMapping(_ATTENTION + "kv_a_layernorm.weight", "latent", ("attention.latent_norm",)),
        WeightMapping(_ATTENTION + "kv_b_proj.weight", "(heads *) latent", ("attention.key", "attention.value")),
        WeightMapping(_ATTENTION + "o_proj.weight", "embed (heads value_dim)", ("attention.output",)),
        WeightMapping(_ATTENTION + "o_proj.bias", "embed", ("attention.output_bias",)),
    ]


def multi_token_prediction(tied: bool) -> list[WeightMapping]:
    """Return the mappings of DeepSeek's multi-token prediction modules, without their blocks but with copies of the
    shared embedding and head."""
    module, ours, head = "model.layers.{mtp_layer}.", f"{MTP_LAYERS}.", "embedding" if tied else "unembedding"
    shared = (
        "multi-token prediction modules share the model's embedding and head; to read the model without these modules, "
        "set num_nextn_predict_layers to 0"
    )
    return [
        WeightMapping(module + "embed_tokens.weight", "vocab embed", ("embedding",), copied=shared),
        WeightMapping(module + "enorm.weight", "embed", (ours + "embedding_norm",)),
        WeightMapping(module + "hnorm.weight", "embed", (ours + "hidden_norm",)),
        WeightMapping(module + "eh_proj.weight", "residual (embedding_hidden embed)", (ours + "projection",)),
        WeightMapping(module + "shared_head.norm.weight", "embed", (ours + "final_norm",)),
        WeightMapping(module + "shared_head.head.weight", "vocab embed", (head,), copied=shared),
    ]


def feed_forward(module: str, ours: str) -> list[WeightMapping]:
    """Return the mappings of a dense SwiGLU feed-forward."""
    return [
        WeightMapping(f"{LAYER}{module}.gate_proj.weight", "hidden embed", (f"{ours}.gate",)),
        WeightMapping(f"{LAYER}{module}.up_proj.weight", "hidden embed", (f"{ours}.up",)),
        WeightMapping(f"{LAYER}{module}.down_proj.weight", "embed hidden", (f"{ours}.down",)),
    ]


def experts(module: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> list[WeightMapping]:
    """Return the mappings of a router and of experts that are separate modules."""
    expert = f"{LAYER}{module}.experts.{{expert}}."
    return [
        WeightMapping(f"{LAYER}{module}.gate.weight", "router embed", ("feed_forward.router",)),
        WeightMapping(f"{expert}{gate}.weight", "hidden embed", ("feed_forward.gate_up[0]",)),
        WeightMapping(f"{expert}{up}.weight", "hidden embed", ("feed_forward.gate_up[1]",)),
        WeightMapping(f"{expert}{down}.weight", "embed hidden", ("feed_forward.down",)),
    ]


def fused(mappings: Iterable[WeightMapping]) -> list[WeightMapping]:
    """Return the mappings of a checkpoint with a layer's experts in one tensor, the layout of transformers 5 in memory.

    transformers writes such a checkpoint with ``save_pretrained(..., save_original_format=False)``.
    """
    mappings = list(mappings)
    if not any("{expert}" in mapping.theirs for mapping in mappings):
        return mappings
    module, gate_up = LAYER + "mlp.", ("feed_forward.gate_up[0]", "feed_forward.gate_up[1]")
    others = [mapping for mapping in mappings if "{expert}" not in mapping.theirs]
    return [
        *(replace(mapping, theirs=mapping.theirs.replace(".block_sparse_moe.", ".mlp.")) for mapping in others),
        WeightMapping(module + "experts.gate_up_proj", "expert * embed", gate_up),
        WeightMapping(module + "experts.down_proj", "expert embed hidden", ("feed_forward.down",)),
    ]
