"""Define multi-token prediction (MTP; DeepSeek-V3, arXiv:2412.19437, Sec. 2.2): modules that predict later tokens.

For token i, module k (k = 1 to D) takes the representation h_i^(k-1) of the previous module (of the model for k = 1)
and the embedding of token i + k:

    h_i^k = RMSNorm(Block_k(M_k · [RMSNorm(Emb(t_(i+k))); RMSNorm(h_i^(k-1))]))

The model's unembedding turns h_i^k into logits of token i + k + 1. Modules share embedding and unembedding with the
model. The block is an ordinary layer, an MoE layer if the model has experts. The report's h is normalized here: by the
model's final norm for the model, and by a separate norm for each module (``shared_head.norm`` in the published
weights). vLLM serves the published module in the same way, with the halves of M in the same order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from moejax.architecture import Architecture
from moejax.kernels.linear import project
from moejax.kernels.rms_norm import rms_norm
from moejax.model.layers import ACTIVATION, ForwardContext, Layer, LayerInputs, rematerialized, stacked, unstacked
from moejax.model.parameter import ParamFactory
from moejax.routing.sums import RoutingSums
from moejax.sharding import constrain


class MTPLayers(nnx.Module):
    """Parameters of the stacked modules."""

    def __init__(self, architecture: Architecture, params: ParamFactory):
        a, depth = architecture, architecture.num_mtp_layers
        width = {"layers": depth, "embed": a.model_dim}
        joined = {"layers": depth, "embedding_hidden": 2, "embed": a.model_dim, "residual": a.model_dim}
        self.embedding_norm = params.ones(width)
        self.hidden_norm = params.ones(width)
        self.projection = params.matrix(joined, 2 * a.model_dim)
        self.block = Layer(a, depth, params, experts=a.is_moe)
        self.final_norm = params.ones(width)

    def __call__(
        self,
        hidden: Float[Array, "B T D"],
        embedded: Float[Array, "B T D"],
        inputs: LayerInputs,
        context: ForwardContext,
    ) -> tuple[Float[Array, "B T D"], RoutingSums | None]:
        """Apply one module, without its final norm, to the embeddings of the later tokens.

        The module's parameters are already sliced from the stack.
        """
        epsilon, runtime = context.architecture.norm_epsilon, context.runtime
        embedded = rms_norm(embedded, self.embedding_norm[...], epsilon)
        hidden = rms_norm(hidden, self.hidden_norm[...], epsilon)
        # One matmul for each half: concatenating the halves would copy them, and on a mesh all-reduce both gradients.
        halves = zip((embedded, hidden), self.projection[...], strict=True)
        of_embedding, of_hidden = (
            project("btd,de->bte", half, matrix, types=runtime.product_types) for half, matrix in halves
        )
        x, left = self.block(constrain(of_embedding + of_hidden, ACTIVATION), inputs, context, window=0)
        return x, left.routing


def run_mtp_layers(
    layers: MTPLayers,
    hidden: Float[Array, "B T D"],
    embedded: Float[Array, "B T D"],
    inputs: LayerInputs,
    context: ForwardContext,
) -> tuple[tuple[Float[Array, "B T D"], ...], RoutingSums | None]:
    """Apply all modules; return the input of the unembedding for each, and their stacked routing sums.

    ``hidden`` is the model's normalized output; ``embedded`` has the embeddings of the unshifted tokens.
    """
    structure, params = nnx.split(layers)
    segments = context.mask.query_segments

    def one(hidden: Array, row: Any, depth: int) -> tuple[Array, RoutingSums | None]:
        params, inputs = row
        mask = has_token_ahead(hidden.shape[:2], depth, segments, context.padding_mask)
        module = nnx.merge(structure, params)
        return module(hidden, ahead(embedded, depth), inputs, replace(context, padding_mask=mask))

    # The final norm is outside: its gradient needs the block's output, which would otherwise be recomputed.
    one = rematerialized(one, context.runtime, scanned=False)
    hiddens, sums = [], []
    for depth, row in enumerate(unstacked((params, inputs)), start=1):
        x, routing = one(hidden, row, depth)
        hidden = rms_norm(x, layers.final_norm[depth - 1], context.architecture.norm_epsilon)
        hiddens.append(hidden)
        sums.append(routing)
    return tuple(hiddens), stacked(sums)


def ahead(x: Array, tokens: int) -> Array:
    """Shift sequences (axis 1) so that position t holds the value of t + ``tokens``; zeros beyond the end."""
    moved = [(-tokens, tokens, 0) if axis == 1 else (0, 0, 0) for axis in range(x.ndim)]
    return jax.lax.pad(x, jnp.zeros((), x.dtype), moved)


def has_token_ahead(
    shape: tuple[int, ...],
    tokens: int,
    segments: Int[Array, "B T"] | None,
    padding_mask: Bool[Array, "B T"] | None = None,
) -> Bool[Array, "B T"]:
    """Return a mask of the positions t whose token t + ``tokens`` exists, is not padding, and is in t's document."""
    there = jnp.broadcast_to(jnp.arange(shape[1]) < shape[1] - tokens, shape)
    if padding_mask is not None:
        there = there & padding_mask & ahead(padding_mask, tokens)
    return there if segments is None else there & (segments == ahead(segments, tokens))
