"""Check the explainer of "MoE needs a more aggressive data scaling strategy" (ICLR 2026): its identities and tables."""

from __future__ import annotations

import itertools

from moejax.architecture import Architecture
from moejax.data.mixtures import MIXTURES
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.budget import resources
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS, PARAMS
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.papers.record import Number, Reading, Record, Records, recorder, same, trend

TITLE = 'Explainer of "MoE needs a more aggressive data scaling strategy" (ICLR 2026)'
record = recorder("li")

LAW = published("resources", "li-2026").law
MODEL_DIM, DENSE_HIDDEN, LAYERS, SEQUENCE = 1408, 3904, 16, 16384.0
ALPHA = DENSE_HIDDEN / MODEL_DIM
BACKBONES = {
    "E = 62, K = 4": (62, 4, 352, 352),
    "E = 22, K = 3": (22, 3, 1408, 0),
    "E = 88, K = 22": (88, 22, 352, 7744),
}
"""Shapes for the identities: experts, active experts, expert width, and the width of shared experts."""

_DIFFERENCES = ("-2.47", "0.12", "0.56", "0.68", "2.32", "0.21")
TABLE_8 = {
    name: (own, MIXTURES["llama-1-by-li-2026"].weights[name], printed)
    for (name, own), printed in zip(MIXTURES["li-2026"].weights.items(), _DIFFERENCES, strict=True)
}
"""Percentages of the document's and LLaMA-1's data recipes, and the printed difference."""

TABLES_4_TO_6 = {
    "Table 4": ("1.6766", "1.6697", "1.6813", "1.8557", "1.8737", "1.8620", "1.6752", "1.6712", "1.6726"),
    "Table 5": ("1.6750", "1.452", "1.355", "1.440", "1.409"),
    "Table 6": ("2.0338", "2.0470", "1.9996", "2.0266", "2.0156", "2.0235"),
}


def records() -> Records:
    """Yield every number of the document."""
    for name, shape in BACKBONES.items():
        yield from _identities(name, *shape)
    yield from _approximation()
    yield from _token_multiplier()
    yield from _doubling()
    yield from _shapes()
    yield from _other_papers()
    yield from _recipe()
    yield _normalized()
    for where, losses in TABLES_4_TO_6.items():
        for loss in losses:
            yield record(where, f"measured {loss}", loss, None, note="the runs are not published")


NORMALIZED, PLAIN = ("1.6726", "1.6752"), ("1.6712", "1.6750")
"""Losses of Table 5 with and without normalization, each with and without a shared expert."""


def _normalized() -> Record:
    """Return the check that Table 4's last group, labeled Norm = True, contains no loss without normalization."""
    group = TABLES_4_TO_6["Table 4"][-3:]
    elsewhere = sum(loss in NORMALIZED or loss not in PLAIN for loss in group)
    return record(
        "Tables 4 and 5",
        "losses of Table 4's last group, all with Norm = True, that Table 5 does not have without normalization",
        str(len(group)),
        elsewhere,
        note="1.6712 is the loss of a shared ratio in Table 4, and of 1dense with a shared expert and without "
        "normalization in Table 5: one run, or two runs of equal loss; the tables are images",
        implied=True,
        undefined=True,
    )


def _model(experts: int, top_k: int, hidden: int, shared: int, dense_layers: int = 0) -> Architecture:
    return Architecture(
        vocab_size=65_536,
        model_dim=MODEL_DIM,
        num_layers=LAYERS,
        num_heads=11,
        num_kv_heads=11,
        head_dim=128,
        dense_hidden=DENSE_HIDDEN,
        num_dense_layers=dense_layers,
        num_experts=experts,
        top_k=top_k,
        expert_hidden=hidden,
        num_shared_experts=1 if shared else 0,
        shared_hidden=shared,
    )


def _dense() -> Architecture:
    return _model(0, 0, 0, 0)


def _per_token(architecture: Architecture) -> float:
    """Return M, the forward FLOPs of a token, counted by part."""
    return FLOPS["resources"].per_token(architecture, SEQUENCE) / 3


def _identities(name: str, experts: int, top_k: int, hidden: int, shared: int) -> Records:
    model, dense, context = _model(experts, top_k, hidden, shared), _dense(), SEQUENCE / MODEL_DIM
    mu, beta = (shared + experts * hidden) / MODEL_DIM, (shared + top_k * hidden) / MODEL_DIM
    total, active = PARAMS["resources"].total(model), PARAMS["resources"].active(model)
    rate = active / total
    size = PARAMS["resources"].total(dense)
    kappa_dense, kappa = (resources.attention_factor(ratio, context) for ratio in (ALPHA, beta))
    one_dense = _model(experts, top_k, hidden, shared, dense_layers=1)
    layers = [resources.layer_params(MODEL_DIM, LAYERS - 1, ratio) for ratio in (mu, beta)]
    rest = resources.layer_params(MODEL_DIM, 1, ALPHA)
    design = Design(params_total=total, params_active=active, model_dim=MODEL_DIM, num_layers=LAYERS)
    predicted = LAW(design)
    dense_dim = LAW.dense_width(total)
    dense_context = SEQUENCE / dense_dim
    dense_per_token = 2 * total * resources.attention_factor(ALPHA, dense_context)
    sides = {
        "Eq. 6": (resources.layer_params(88.0 * LAYERS, LAYERS, ALPHA), size),
        "Eqs. 7, 11 and 13": (2 * size * kappa_dense, _per_token(dense)),
        "Eq. 14": (layers[0] + rest, PARAMS["resources"].total(one_dense)),
        "Eq. 15": (layers[1] + rest, PARAMS["resources"].active(one_dense)),
        "Eq. 17": (2 * rate * total + 4 * MODEL_DIM * SEQUENCE * LAYERS, _per_token(model)),
        "Eqs. 16 and 18": (resources.activation_rate(beta, mu), rate),
        "Eqs. 19 to 21": (2 * rate * total * kappa, _per_token(model)),
        "Eq. 22": (resources.layer_params(dense_dim, dense_dim / 88.0, ALPHA), total),
        "Eq. 23": (predicted["compute_ratio"], _per_token(model) / dense_per_token),
        "Eqs. 24 and 25": (predicted["token_multiplier"] * _per_token(model), dense_per_token),
        "Eq. 27": (resources.active_ratio(rate, mu), beta),
    }
    for where, (left, right) in sides.items():
        inputs = {"D_m": MODEL_DIM, "L": LAYERS, "S": SEQUENCE, "mu": mu, "beta": beta, "alpha": ALPHA}
        yield record(where, f"identity between formula and count, {name}", "holds", same(left, right), inputs=inputs)


def _design(rate: Number, mu: Number = 22.0) -> Design:
    total = resources.layer_params(MODEL_DIM, LAYERS, mu)
    return Design(params_total=total, params_active=rate * total, model_dim=MODEL_DIM, num_layers=LAYERS)


def _token_multiplier() -> Records:
    rates = (0.1, 0.2, 0.3, 0.4)
    for rate in rates:
        context = SEQUENCE / MODEL_DIM
        exact = float(LAW(_design(rate))["token_multiplier"])
        name = f"tokens of the mixture over the dense model's at r_a = {rate:g}, zeta = 88, mu = 22 ('roughly 1/r_a')"
        yield record(
            "Appendix A and Eq. 26",
            name,
            f"about {1 / rate:.4g}",
            exact,
            inputs={"S": SEQUENCE, "gamma_m": round(context, 3)},
            note="the document gives neither a tolerance for 'roughly' nor the sequence length of the sweep; at "
            "S = 16384, stated for the search over shapes, most of a sparse model's FLOPs are attention scores, which "
            "do not fall with r_a",
            undefined=True,
        )
    ratios = [float(LAW(_design(rate))["compute_ratio"]) for rate in rates]
    steps = [later - earlier for earlier, later in itertools.pairwise(ratios)]
    yield record("Eq. 23 and Figure 1a", "R_c is linear in r_a, but for a constant", "holds", same(steps[0], steps[-1]))
    yield record("A.4", "forward FLOPs per token of the mixture, with r_a", "rises", trend(ratios))
    counted = flops_per_token(_dense(), SEQUENCE)
    value = counted.training / counted.forward
    yield record("Eq. 5", "C over M·D", "3", value)
    note = "in Eq. 5, C = 3·M·D, and M counts the forward pass"
    step = counted.training / (3 * counted.forward)
    whole = Reading(step, "M in Table 7 as the FLOPs of a training step, forward and backward, instead of Eq. 5's M")
    yield record("Table 7", "C over M·D", "1", value, whole, note=note)


def _doubling() -> Records:
    where = "Appendix F"
    for mu, name_of_mu in ((22.0, "mu = 22"), (1e6, "very large mu")):
        doubled = LAW(_design(0.2, mu))
        for quantity, name in (("mu", "total_ratio"), ("beta", "active_ratio")):
            value = float(doubled[f"{name}_doubled"] / doubled[name])
            name = f"growth of {quantity} from 7B to 14B at r_a = 0.2 and {name_of_mu} ('roughly 2')"
            note = (
                "the text assumes a large mu without giving a value; by Eq. 27, beta' = 2 beta + 4/3, and at mu = 22 "
                "the constant is not small compared with beta"
            )
            yield record(where, name, "about 2", value, note=note, undefined=True)
    bare = resources.activation_rate(0.0, 22.0)
    yield record(where, "least r_a at mu = 22, attention alone, in percent", None, 100 * bare)


def _approximation() -> Records:
    """Yield the shares of the terms that Eqs. 14 and 15 omit."""
    for name, shape in BACKBONES.items():
        counts = params(_model(*shape))
        for quantity, exact, short in (
            ("N, by Eq. 14", counts.total, PARAMS["resources"].total(_model(*shape))),
            ("N_a, by Eq. 15", counts.active, PARAMS["resources"].active(_model(*shape))),
        ):
            left = 1 - short / (exact - counts.vocabulary)
            where = "Eqs. 14 and 15"
            yield record(
                where, f"share of {quantity}, in norms and router ('small terms'), {name}", "<0.01", left, implied=True
            )
        one_dense = _model(*shape, dense_layers=1)
        rate = PARAMS["resources"].active(one_dense) / PARAMS["resources"].total(one_dense)
        whole = PARAMS["resources"].active(_model(*shape)) / PARAMS["resources"].total(_model(*shape))
        yield record("Eq. 18", f"r_a by it over r_a with one dense layer of {LAYERS}, {name}", None, whole / rate)


def _shapes() -> Records:
    yield record("Appendix C.3", "zeta at D_m = 1408 and L = 16", "88", MODEL_DIM / LAYERS)
    for heads, head_dim, where in ((22, 64, "Appendix C.2"), (11, 128, "Appendix C.3")):
        yield record(where, f"D_m of H = {heads} heads of {head_dim}", str(MODEL_DIM), heads * head_dim)


def _other_papers() -> Records:
    kimi = CATALOGUE["kimi-k2"].architecture
    small = CATALOGUE["deepseek-moe-16b"]
    total, active = small.computed()
    yield record("Appendix B.2", "sparsity of Kimi K2", "48", kimi.num_experts / kimi.top_k)
    yield record("Appendix B.2", "experts that serve a token in Kimi K2", "8", kimi.top_k)
    yield record("Appendix B.2", "shared experts of Kimi K2", "1", kimi.num_shared_experts)
    yield record("Appendix B.2", "routed experts of Kimi K2", "384", kimi.num_experts)
    yield record("Appendix B.1", "total parameters of DeepSeekMoE", "16", total / 1e9, unit="B")
    share = 100 * active / 7e9
    yield record(
        "Appendix B.1", "computations of DeepSeekMoE over a dense 7B's ('about 40 %')", "about 40", share, unit="%"
    )
    yield record("Appendix B.1", "active parameters of a dense 7B over DeepSeekMoE's", "about 2.5", 7e9 / active)


def _recipe() -> Records:
    for name, (own, llama, printed) in TABLE_8.items():
        yield record("Table 8", f"difference of {name}", printed, own - llama, unit="%")
    yield record("Table 8", "sum of the recipe", "100.0", sum(own for own, _, _ in TABLE_8.values()), unit="%")
    llama = sum(llama for _, llama, _ in TABLE_8.values())
    note = "LLaMA-1 has 2.5 % of arXiv, which makes the sum 100"
    yield record("Table 8", "sum of the LLaMA-1 recipe", "100.0", llama, unit="%", note=note)
    parts = 1.69 + 0.13 + 3.24
    yield record("Table 8", "Wikipedia, summed over its languages", "5.06", parts, unit="%")
    yield record("Table 8", "web data of LLaMA-1, summed over its parts", "82.00", 67.0 + 15.0, unit="%")
    yield record("Appendix E", "generic web data ('roughly 80 %')", "about 80", TABLE_8["WebData-en"][0], unit="%")
