"""Check Tian et al. (2025): MoE-mini and Dense-6.1B, and the quoted activation ratios (Tables 1 and 3)."""

from __future__ import annotations

from collections.abc import Callable

from moejax.architecture import Architecture
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS, PARAMS, multi_head
from moejax.laws.design import Design
from moejax.papers.record import Number, Reading, Records, recorder

record = recorder("tian")
MINI, DENSE = (CATALOGUE[name].architecture for name in ("moe-mini", "dense-6.1b"))

COUNTS: dict[str, Callable[[Architecture], Number]] = {
    "": lambda a: FLOPS["tian"].per_token(a, 4096),
    "Eqs. 10 to 12 as printed": lambda a: FLOPS["tian-printed"].per_token(a, 4096),
    "Eqs. 10 and 11 as printed, no logits": lambda a: (
        FLOPS["tian-printed"].per_token(a, 4096) - 3 * flops_per_token(a, 4096).unembedding
    ),
    "all products, logits too": lambda a: FLOPS["exact"].per_token(a, 4096),
    "the same with half of the scores by a causal mask": lambda a: FLOPS["exact-causal"].per_token(a, 4096),
    "the same with as many key-value heads as heads": lambda a: FLOPS["exact"].per_token(multi_head(a), 4096),
}
"""Counts of training FLOPs per token at sequences of 4096, by their assumptions."""


def records() -> Records:
    """Yield every number about the two models."""
    yield from _activation_ratios()
    yield from _sizes()


def _activation_ratios() -> Records:
    """Yield every printed activation ratio once, by Table 3's definition and by the two that the labels follow."""
    note = (
        "Table 3 has A = (E_a + E_s)/(E + E_s), by which the paper's ratios of 3.1 and 0.8 % are 4.6 and 1.2 %; the "
        "data of Table 6 are labelled E_a/E, those of Appendix E.1 (E_a + E_s)/E. Which A Eq. 4 was fitted in is not "
        "said: Table 3's is used here, and the other where a printed label is compared"
    )
    for where, quantity, experts, active, printed in (
        ("Abstract", "A of MoE-mini's prediction", 384, 12, "3.1"),
        ("Section 5", "A of MoE-mini", 384, 12, "3.4"),
        ("Section 4.1 and Appendix F.1", "lowest A (2 of 256)", 256, 2, "0.8"),
        ("Appendix E.1", "A of 4 of 64 experts", 64, 4, "7.8"),
        ("Figure 8", "lowest A (2 of 64)", 64, 2, "4.7"),
        ("Figure 8", "highest A (6 of 64)", 64, 6, "10.9"),
        ("Figure 4b and Appendix C", "A of 2 of 64 experts (1/32)", 64, 2, "3.1"),
    ):
        design = Design(num_experts=experts, top_k=active, num_shared_experts=1)
        values = (
            100 * float(design.activation_ratio),
            Reading(100 * active / experts, "E_a/E, without the shared experts"),
            Reading(100 * float(design.active_experts) / experts, "(E_a + E_s)/E"),
        )
        yield record(where, quantity, printed, *values, unit="%", note=note)


def _sizes() -> Records:
    layers = [
        Reading(PARAMS["tian"].total(MINI.replace(num_dense_layers=dense)) / 1e9, name)
        for dense, name in ((0, ""), (1, "one dense layer, whose number is not printed"))
    ]
    yield record("Table 1", "N of MoE-mini, without the vocabulary", "17.5", *layers, unit="B")
    for quantity in ("N", "N_a"):
        yield record("Table 1", f"{quantity} of Dense-6.1B", "6.11", PARAMS["tian"].total(DENSE) / 1e9, unit="B")
    with_router = PARAMS["tian"].active(MINI) / 1e9
    without = with_router - params(MINI).router / 1e9
    embedding = params(MINI).vocabulary / 2e9
    values = (
        with_router,
        Reading(without, "the router left out"),
        Reading(with_router + embedding, "one embedding matrix counted"),
        Reading(with_router + 2 * embedding, "both embedding matrices counted"),
        Reading(PARAMS["tian"].active(multi_head(MINI)) / 1e9, "as many key-value heads as heads"),
        Reading(PARAMS["tian"].active(MINI.replace(num_dense_layers=0)) / 1e9, "no dense layer"),
        Reading(PARAMS["tian"].active(MINI.replace(num_dense_layers=3)) / 1e9, "three dense layers"),
    )
    note = "no count of its parts gives it, and the document does not say which parts N_a has"
    yield record("Table 1", "N_a of MoE-mini", "0.85", *values, unit="B", note=note, undefined=True)
    yield record("Table 1", "N_a of MoE-mini in its name (A0.8B)", "0.8", *values, unit="B")
    yield record(
        "Table 1 and Section 5",
        "G of MoE-mini",
        "12",
        2 * MINI.model_dim / MINI.expert_hidden,
        note="G = 12 would need d_expert = 341; Table 1 has 384",
    )
    dense = PARAMS["tian"].active(DENSE) / 1e9
    yield record("Section 5", "active parameters of Dense-6.1B over MoE-mini's", ">7", dense / with_router)
    share = 100 * with_router / dense
    yield record("Section 5.2", "active parameters of MoE-mini over Dense-6.1B's", "about 13", share, unit="%")
    ratios = [Reading(count(DENSE) / count(MINI), reading) for reading, count in COUNTS.items()]
    note = "seven is the ratio of active parameters"
    yield record(
        "Abstract", "training FLOPs per token of Dense-6.1B over MoE-mini's ('over 7')", ">7", *ratios, note=note
    )
    tokens = 1e12
    spent = [Reading(count(MINI) * tokens, reading) for reading, count in COUNTS.items()]
    note = "EL grows with C, so that at these FLOPs it is below what is predicted for 1e22"
    yield record(
        "Section 5",
        "training FLOPs of MoE-mini on 1T tokens, for the 1e22 of EL",
        "1e22",
        *spent,
        note=note,
        implied=True,
    )
    yield record("Appendix L", "size of the final MoE model", "16", layers[1], unit="B", note="Table 1 has 17.5B")
    hours = 360_000 + 200_000 + 120_000
    yield record("Appendix L", "GPU-hours, summed over the three parts", "about 680000", hours)
    yield record(
        "Section 1",
        "active parameters of a 7B dense model over DeepSeekMoE's",
        "about 2.5",
        7e9 / CATALOGUE["deepseek-moe-16b"].params_active,
    )
