"""The resource equation of Li et al. (ICLR 2026): cost of an MoE model relative to a dense model with equal total
parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LawEntry, Published, coefficient, constant, law


@law
class Resources:
    """r_a = N_a/N, mu = (N/(D_m²·L) - 4)/3, beta = (r_a·(4 + 3·mu) - 4)/3,
    R_c = r_a·(1 + 2·S/(D_m·(4 + 3·beta)))/(1 + 2·S/(D_d·(4 + 3·alpha))) and T = 1/R_c,
    with D_d = (zeta·N/(4 + 3·alpha))^(1/3), mu_2 = (2·(4 + 3·mu) - 4)/3 and beta_2 = (r_a·(4 + 3·mu_2) - 4)/3.

    Explainer of "MoE needs a more aggressive data scaling strategy" (ICLR 2026), Eqs. 12 to 27, for models whose layers
    are all MoE layers. It compares an MoE model with a dense model of equal total parameters and equal compute; it only
    counts and predicts no loss. N is ``params_total_nonembedding``, N_a ``params_active_nonembedding``, D_m
    ``model_dim``, L ``num_layers``. With the counts of Eqs. 6, 14 and 15 (no norms, router or embeddings) the other
    equations are exact; with one dense layer in 16, Eq. 18 is 5 % too low.

    r_a is ``activation_rate``, mu is ``total_ratio``, beta is ``active_ratio``; R_c is ``compute_ratio``, the ratio of
    FLOPs per token (M_MoE/M_dense), and T is ``token_multiplier``, the ratio of tokens (D_MoE/D_dense). D_d is the
    width of the dense model. For a model with twice the parameters at the same depth, width and r_a, mu_2 is
    ``total_ratio_doubled`` and beta_2 is ``active_ratio_doubled``.
    """

    inputs: ClassVar[tuple[str, ...]] = ("params_total", "params_active", "model_dim", "num_layers")
    outputs: ClassVar[Mapping[str, str]] = {
        "activation_rate": "active / total parameters",
        "total_ratio": "width of all experts / model width",
        "active_ratio": "width of a token's experts / model width",
        "compute_ratio": "FLOPs per token / FLOPs per token of the dense model",
        "token_multiplier": "tokens / tokens of the dense model",
        "total_ratio_doubled": "width of all experts / model width",
        "active_ratio_doubled": "width of a token's experts / model width",
    }

    dense_ratio: Scalar = coefficient("feed-forward width over model width of the dense model", symbol="alpha")
    dense_aspect: Scalar = coefficient("model width over layers of the dense model", symbol="zeta")
    sequence_length: Scalar = coefficient("tokens in a sequence", symbol="S")
    params_unit: float = constant("parameters in one unit", symbol="", default=1.0, dimension={"params": "-1"})

    def __call__(self, design: Design) -> Any:
        layers = design.model_dim**2 * design.num_layers / self.params_unit
        rate = design.params_active_nonembedding / design.params_total_nonembedding
        total = (design.params_total_nonembedding / layers - _ATTENTION) / _FEED_FORWARD
        active = active_ratio(rate, total)
        kappa = attention_factor(active, self.sequence_length / design.model_dim)
        dense_dim = self.dense_width(design.params_total_nonembedding * self.params_unit)
        compute = rate * kappa / attention_factor(self.dense_ratio, self.sequence_length / dense_dim)
        total_doubled = (2 * _per_layer(total) - _ATTENTION) / _FEED_FORWARD
        return {
            "activation_rate": rate,
            "total_ratio": total,
            "active_ratio": active,
            "compute_ratio": compute,
            "token_multiplier": 1 / compute,
            "total_ratio_doubled": total_doubled,
            "active_ratio_doubled": active_ratio(rate, total_doubled),
        }

    def dense_width(self, params_total: Scalar) -> Any:
        """Return the width of the dense model with ``params_total``: D_m = zeta·L with N = (4 + 3·alpha)·zeta²·L³ (Eq.
        6)."""
        return (params_total * self.dense_aspect / _per_layer(self.dense_ratio)) ** (1 / 3)


_ATTENTION, _FEED_FORWARD = 4, 3
"""Matrices per layer, in units of width²: query, key, value, output; gate, up and down of a feed-forward as wide as the
model."""


def _per_layer(ratio: Scalar) -> Any:
    return _ATTENTION + _FEED_FORWARD * ratio


def layer_params(model_dim: Scalar, num_layers: Scalar, ratio: Scalar) -> Any:
    """Return the number of parameters of layers with a feed-forward of ``ratio``·``model_dim``: (4 + 3·ratio)·D_m²·L.

    Eqs. 6, 14, 15. ``ratio`` is alpha for a dense layer, mu for an MoE layer and beta for its active part. For
    a model with both kinds of layers, call this once per kind and add the results.
    """
    return _per_layer(ratio) * model_dim**2 * num_layers


def activation_rate(beta: Scalar, mu: Scalar) -> Any:
    """Return the activation rate r_a = (4 + 3·beta)/(4 + 3·mu) (Eq. 18).

    ``beta`` is the width of a token's experts divided by the model width; ``mu`` is the width of all experts divided by
    the model width.
    """
    return _per_layer(beta) / _per_layer(mu)


def active_ratio(rate: Scalar, mu: Scalar) -> Any:
    """Return beta from the activation rate r_a and mu (Eq. 27), the inverse of ``activation_rate``.

    It is negative if r_a is below 4/(4 + 3·mu), because attention alone has a larger share of the parameters.
    """
    return (rate * _per_layer(mu) - _ATTENTION) / _FEED_FORWARD


def attention_factor(ratio: Scalar, context: Scalar) -> Any:
    """Return kappa (Eqs. 12 and 20): the FLOPs per token with attention scores, relative to 2·N.

    It is 1 + 2·gamma/(4 + 3·ratio). ``ratio`` is as in ``layer_params``; ``context`` is gamma, the sequence length
    divided by the width.
    """
    return 1 + 2 * context / _per_layer(ratio)


PUBLISHED = {
    "li-2026": Published(
        law=Resources(dense_ratio=3904 / 1408, dense_aspect=88.0, sequence_length=16384.0),
        source="ICLR 2026 explainer, Appendix C: D_ffn = 3904 and D_m = 1408, zeta = 88, S = 16384",
        provenance="read",
        remark="The explainer states S only for its search over shapes. It recommends mu near 20 and D_m/L from 60 to "
        "120, and finds r_a near 20 % best up to 7B.",
    ),
}


ENTRIES = (LawEntry(name="resources", law=Resources, aliases=("li",), published=PUBLISHED),)
