"""The resource equation of Li et al. (ICLR 2026): what a mixture costs beside a dense model of the same total size."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design
from moejax.laws.law import coefficient, law
from moejax.laws.published import Published


@law
class Resources:
    """From r_a = N_a/N to FLOPs per token and tokens, relative to a dense model with the same N and the same compute.

    Explainer of "MoE needs a more aggressive data scaling strategy" (ICLR 2026), Eqs. 12, 16, 18, 20, 23, 25 and 27,
    for a model in which every layer is a mixture. N is ``params_total_nonembedding``, N_a
    ``params_active_nonembedding``. Given Eqs. 6, 14 and 15 for the counts (no norms, router or embeddings) the rest
    is exact; with one dense layer in 16, Eq. 18 is 5 % low.

    Outputs: ``active_ratio`` is beta, the width of the feed-forward that serves a token over the model's width;
    ``compute_ratio`` is R_c = M_MoE/M_dense, FLOPs per token; ``token_multiplier`` is D_MoE/D_dense = 1/R_c.
    ``total_ratio_doubled`` and ``active_ratio_doubled`` are mu and beta of a model with twice the parameters, the same
    depth and width, and the same r_a.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "params_active")
    outputs: ClassVar = {
        "activation_rate": "active over total parameters",
        "active_ratio": "widths of the model",
        "compute_ratio": "FLOPs per token over the dense model's",
        "token_multiplier": "tokens over the dense model's",
        "total_ratio_doubled": "widths of the model",
        "active_ratio_doubled": "widths of the model",
    }

    dense_ratio: Any = coefficient("feed-forward width over model width, dense", symbol="alpha")
    total_ratio: Any = coefficient("width of all experts over model width", symbol="mu")
    dense_context: Any = coefficient("sequence length over model width, dense", symbol="gamma_d")
    moe_context: Any = coefficient("sequence length over model width, mixture", symbol="gamma_m")

    def __call__(self, design: Design) -> Any:
        rate = design.params_active_nonembedding / design.params_total_nonembedding
        active = active_ratio(rate, self.total_ratio)
        compute = (
            rate * attention_factor(active, self.moe_context) / attention_factor(self.dense_ratio, self.dense_context)
        )
        doubled = _per_layer(self.total_ratio) * 2
        total_doubled = (doubled - _ATTENTION) / _FEED_FORWARD
        return {
            "activation_rate": rate,
            "active_ratio": active,
            "compute_ratio": compute,
            "token_multiplier": 1 / compute,
            "total_ratio_doubled": total_doubled,
            "active_ratio_doubled": active_ratio(rate, total_doubled),
        }


_ATTENTION, _FEED_FORWARD = 4, 3
"""Square matrices of model width: query, key, value, output; gate, up and down at feed-forward width = model width."""


def _per_layer(ratio: Any) -> Any:
    return _ATTENTION + _FEED_FORWARD * ratio


def layer_params(model_dim: Any, num_layers: Any, ratio: Any) -> Any:
    """Parameters of layers with a feed-forward of ``ratio``·``model_dim`` (Eqs. 6, 14, 15): (4 + 3·ratio)·D_m²·L.

    ``ratio`` is alpha for a dense layer, mu for all of a mixture layer, beta for its active part; add dense and
    mixture layers.
    """
    return _per_layer(ratio) * model_dim**2 * num_layers


def activation_rate(active: Any, total: Any) -> Any:
    """r_a from beta and mu (Eq. 18): (4 + 3·beta)/(4 + 3·mu)."""
    return _per_layer(active) / _per_layer(total)


def active_ratio(rate: Any, total: Any) -> Any:
    """beta from r_a and mu (Eq. 27), the inverse of ``activation_rate``.

    Negative when r_a is below 4/(4 + 3·mu): attention alone is a larger share than that.
    """
    return (rate * _per_layer(total) - _ATTENTION) / _FEED_FORWARD


def attention_factor(ratio: Any, context: Any) -> Any:
    """kappa (Eqs. 12 and 20): 1 + 2·gamma/(4 + 3·ratio), what attention scores add to 2·N FLOPs per token."""
    return 1 + 2 * context / _per_layer(ratio)


PUBLISHED = {
    "li-2026": Published(
        law=Resources(dense_ratio=3904 / 1408, total_ratio=22.0, dense_context=16384 / 1408, moe_context=16384 / 1408),
        source="ICLR 2026 explainer, Appendix C: D_m = 1408, D_ffn = 3904, mu = 22, S = 16384",
        mark="read",
        remark="The shape of its architecture search; S is stated for the search over shapes only. Its sweeps to 7B "
        "found r_a near 20 % best.",
    ),
}
