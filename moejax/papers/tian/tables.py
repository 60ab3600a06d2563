"""Check Tian et al. (2025): the experiments (Tables 8 to 12 and 15), and the sums and means in Tables 2, 4 and 7."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from moejax.architecture import Architecture
from moejax.laws.accounting import flops_per_token
from moejax.laws.conventions import FLOPS, PARAMS
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.papers.record import Reading, Record, Records, recorder
from moejax.quantities import short

record = recorder("tian")


class Group(NamedTuple):
    """Models that share a compute budget in Tables 8 to 12."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    expert: int
    rate: str
    """Learning rate of Table 8."""
    batch: str
    """Batch size of Table 8, in sequences."""
    flops: float
    rate_12: str
    """Learning rate of Table 12."""
    dense_hidden: str
    """d_ffn of Table 11."""

    def model(self, width: int = 0, expert: int = 0) -> Architecture:
        """Return the group's model with 2 of 64 experts; ``width`` and ``expert`` replace d_model and d_expert if not
        0."""
        width = width or self.width
        return Architecture(
            vocab_size=126_464,
            model_dim=width,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=width // self.heads,
            num_experts=64,
            top_k=2,
            num_shared_experts=1,
            expert_hidden=expert or self.expert,
        )


GROUPS = (
    Group(8, 384, 8, 2, 320, "1.52e-3", "98", 2e18, "1.52e-3", "1280"),
    Group(8, 512, 8, 2, 512, "1.31e-3", "147", 6e18, "1.31e-3", "2048"),
    Group(10, 640, 10, 2, 640, "1.11e-3", "228", 2e19, "1.11e-3", "2560"),
    Group(14, 768, 12, 4, 768, "9.5e-4", "342", 6e19, "9.5e-3", "3072"),
    Group(16, 1024, 16, 4, 1024, "8.1e-4", "531", 2e20, "8.1e-3", "4096"),
    Group(22, 1280, 20, 4, 1280, "7.0e-4", "795", 6e20, "7.0e-3", "5120"),
)
"""Groups of models in the order of the tables."""
BATCHES_12 = ("96", "160", "224", "320", "512", "768")
"""Batch sizes of Table 12, by group."""
SEARCHED = {"eta": ("learning_rate", "<=-9"), "B in tokens": ("batch_tokens", ">=18")}
"""Largest learning rate and smallest batch size, in log2, of Appendix E.1's search from 3e17 to 3e20 FLOPs."""

EXPERTS = (64, 128, 192, 256, 384, 512)
"""Routed experts of Table 9, in the order of ``TABLE_9``."""

ROUTED_RATIOS = tuple(2 / experts for experts in (4, 8, 16, 32, 64, 128, 256))
"""Activation ratios as printed in Section 4.1, Appendix F.1 and Figures 1 and 4: E_a/E, from 50 % to 0.8 %."""
PRINTED_RATIO = 2 / 64
"""Activation ratio E_a/E of 3.1 % in Figures 1 and 4. By Table 3, (E_a + E_s)/(E + E_s), the same models have 4.6 %."""


def in_percent(ratio: float) -> str:
    """Return an activation ratio in the form of the figures' labels."""
    return f"A = {100 * ratio:.2g} %"


OF_ROUTED = "The curves' ratios count only routed experts, E_a/E, like the paper's labels."

TABLE_12 = {
    8: [
        [(352, 450), (368, 380), (384, 320), (400, 260), (416, 208)],
        [(480, 626), (512, 512), (544, 410), (560, 364), (576, 320)],
    ],
    10: [[(600, 766), (640, 640), (680, 528), (700, 476), (740, 380)]],
    14: [[(696, 988), (768, 768), (816, 642), (840, 584), (888, 474)]],
    16: [[(896, 1378), (1024, 1024), (1088, 876), (1152, 742), (1184, 680)]],
    22: [[(1120, 1686), (1280, 1280), (1360, 1110), (1440, 956), (1520, 816)]],
}
"""Groups of models with equal M, by number of layers; each model is (d_model, d_expert)."""

TABLE_9 = {
    384: (384, 192, 128, 96, 64, 48),
    512: (512, 256, 170, 128, 85, 64),
    640: (640, 320, 213, 160, 106, 80),
    768: (768, 384, 256, 192, 128, 96),
    1024: (1024, 512, 341, 256, 170, 128),
    1280: (1280, 640, 426, 320, 213, 160),
}
"""Values of d_expert for 64, 128, 192, 256, 384 and 512 experts, by d_model."""
TABLE_10_SHARED = ("1", "1", "1", "2", "1", "1")
"""Values of E_s at E_a = 11, by group."""
TABLE_15 = {192: "384", 256: "192", 384: "128", 512: "96"}
TABLE_4 = (46.0, 5.0, 4.0, 6.0, 25.0, 0.1, 1.9, 1.0, 4.0, 6.0, 1.0)

TABLE_7 = {
    "General/Reasoning": (
        "55.8",
        "56.2",
        (59.7, 78.0, 33.4, 68.6, 48.0, 16.5, 55.6, 65.6, 76.6),
        (57.0, 78.7, 34.9, 75.2, 35.7, 19.5, 61.3, 66.6, 77.2),
    ),
    "Professional": ("44.0", "44.7", (51.1, 21.7, 50.7, 52.5, 63.6, 24.8), (53.1, 24.0, 51.9, 51.1, 60.6, 27.3)),
    "Language": ("69.2", "71.6", (73.4, 65.0), (75.6, 67.6)),
    "Code": (
        "36.9",
        "39.8",
        (31.7, 34.2, 35.4, 62.8, 41.0, 50.0, 7.5, 32.9),
        (35.4, 32.3, 51.8, 61.3, 44.6, 51.6, 7.4, 34.1),
    ),
    "Math": (
        "32.9",
        "34.7",
        (59.2, 23.7, 60.5, 35.6, 41.6, 3.3, 27.5, 33.1, 12.1),
        (58.0, 29.8, 62.9, 36.8, 42.6, 2.9, 28.6, 33.5, 17.6),
    ),
}
"""Printed means of Dense-6.1B and MoE-mini, then their scores, keyed by category."""

TASKS = {
    "General/Reasoning": (
        *("ARC-challenge", "ARC-easy", "AGIEval", "OpenBookQA", "BBH", "ProntoQA", "Multi-LogiEval", "HellaSwag"),
        "PIQA",
    ),
    "Professional": ("MMLU", "MMLU-Pro", "CMMLU", "C-Eval", "CommonsenseQA", "GPQA"),
    "Language": ("RACE-middle", "RACE-high"),
    "Code": (
        *("HumanEval", "HumanEval-cn", "HumanEval-Plus", "HumanEval-FIM", "MBPP", "MBPP-Plus", "LiveCodeBench"),
        "CruxEval",
    ),
    "Math": (
        *("GSM8K", "MATH", "CMATH", "MGSM-zh", "CN-Middle School 24", "Minerva-Math", "MathBench"),
        *("Gaokao2023-Math-En", "GAOKAO-Math24"),
    ),
}
"""Tasks of Table 7, keyed by category, in the order of their scores in ``TABLE_7``."""


def records() -> Records:
    """Yield every number that can be computed from the tables."""
    yield from _hyperparameters()
    yield _largest_budget()
    yield _largest_model()
    yield from _overtraining()
    yield from _granularity()
    yield from _shared_experts()
    yield from _dense_layers()
    yield from _equal_compute()
    yield from _attention()
    yield from _sums()


def _hyperparameters() -> Records:
    law = published("hyperparameters", "tian-2025").law
    note = "the columns are power laws of the maximum training FLOPs, with constants that differ from Eq. 5's"
    for group, batch_12 in zip(GROUPS, BATCHES_12, strict=True):
        at = f"at {short(group.flops)} FLOPs"
        best = law(Design(flops=group.flops))
        eta, sequences = best["learning_rate"], best["batch_tokens"] / 4096
        yield record("Tables 8 to 11", f"eta {at}, by Eq. 5", group.rate, eta, note=note)
        yield record("Tables 8 to 11", f"B {at}, by Eq. 5", group.batch, sequences, unit="sequences", note=note)
        slip = "Tables 8 to 11 have a tenth of this rate at the same FLOPs"
        yield record("Table 12", f"eta {at}, as Table 8 has it", group.rate_12, float(group.rate), note=slip)
        slip = "by Eq. 5 the batch depends only on C, but Tables 8 to 11 and 14 print a different one at the same FLOPs"
        values = int(group.batch), Reading(sequences, "by Eq. 5")
        yield record("Table 12", f"B {at}, as Table 8 has it", batch_12, *values, unit="sequences", note=slip)
    for flops in (3e17, 1e18, 3e20):
        for name, (column, end) in SEARCHED.items():
            note = (
                "the search begins at 3e17 FLOPs, where Eq. 5 gives larger rates and smaller batches than the grid has"
            )
            value = math.log2(law(Design(flops=flops))[column])
            what = f"log2 of {name} by Eq. 5 at {short(flops)} FLOPs, in the grid that was searched"
            yield record("Eq. 5 and Appendix E.1", what, end, value, note=note, implied=True)
    first, last = GROUPS[0], GROUPS[-1]
    decades = math.log(last.flops / first.flops)
    for name, ends, printed in (
        ("eta", (first.rate, last.rate), "-0.1529"),
        ("B", (first.batch, last.batch), "0.3644"),
    ):
        slope = math.log(float(ends[1]) / float(ends[0])) / decades
        yield record("Eq. 5", f"exponent of C in {name}, from the first and last row of Table 8", printed, slope)


def _largest_budget() -> Record:
    """Return the record of the largest IsoFLOP budget of Section 3 and Appendix F.1, compared with Tables 8 to 12."""
    return record(
        "Section 3 and Tables 8 to 12",
        "largest compute budget of the architecture experiments",
        "3e20",
        max(group.flops for group in GROUPS),
        note="each of the budgets 1e18 to 3e20 of Appendix F.1 is half of a model's 'Max training FLOPs'; the document "
        "does not state whether losses are read at half of the training",
        undefined=True,
    )


def _largest_model() -> Record:
    """Return the record of the largest model size in Section 1, which is Table 8's last group with 256 experts."""
    largest = GROUPS[-1].model().replace(num_experts=256)
    with_vocabulary = Reading(PARAMS["exact"].total(largest) / 1e9, "with the vocabulary")
    size = PARAMS["tian"].total(largest) / 1e9
    return record(
        "Section 1 and Table 8", "N of the largest model ('up to 28B')", "28", size, with_vocabulary, unit="B"
    )


def _overtraining() -> Records:
    law = published("allocation", "tian-2025-moe").law
    for group in GROUPS:
        per_token, flops = FLOPS["tian"].per_token(group.model(), 4096), group.flops
        tokens = flops / per_token
        # Solve Table 5's M^opt for the budget at which this model is optimal.
        own_budget = (per_token / law.model_scale) ** (1 / law.model_exponent)
        values = (
            tokens / (own_budget / per_token),
            Reading(tokens / law(Design(flops=flops))["tokens"], "the best D at the same budget, for a larger model"),
        )
        yield record("Section 4.1 and Table 8", f"D over the model's D_opt at {short(flops)} FLOPs", ">3", *values)


def _granularity() -> Records:
    for width, widths in TABLE_9.items():
        for experts, expert in zip(EXPERTS, widths, strict=True):
            name = f"G of {experts} experts at d_model = {width}"
            note = "d_expert is rounded to a whole number"
            yield record("Table 9", name, str(experts // 32), 2 * width / expert, note=note)
    for group in GROUPS:
        name = f"G at d_model = {group.width} (Figure 4: fixed at 2)"
        note = "d_expert = 320 where 384 would give 2"
        yield record("Table 8", name, "2.0", 2 * group.width / group.expert, note=note)
    for experts, printed in TABLE_15.items():
        note = "Table 9 has 256 for the same model"
        name = f"d_expert of {experts} experts at d_model = 768"
        yield record("Table 15", name, printed, 64 * 768 / experts, note=note)


def _shared_experts() -> Records:
    for group, printed in zip(GROUPS, TABLE_10_SHARED, strict=True):
        note = "the caption fixes E_a + E_s = 12, and E_a is 11"
        yield record("Table 10", f"E_s beside E_a = 11 at d_model = {group.width}", printed, 12 - 11, note=note)
    shares = [100 * shared / 12 for shared in (10, 8, 6, 4, 1, 0)]
    for printed in ("83.3", "16.7", "8.3"):
        nearest = min(shares, key=lambda share, printed=printed: abs(share - float(printed)))
        name, note = (
            f"S = {printed} % among the rows of Table 10",
            "no row of Table 10 has two shared experts of twelve active ones",
        )
        yield record("Appendix F.3", name, printed, nearest, unit="%", note=note)


def _dense_layers() -> Records:
    for group in GROUPS:
        name, value = f"d_ffn of the dense layers at d_model = {group.width}", 3 * TABLE_9[group.width][0]
        note = "for equal FLOPs, Appendix F.4 sets d_ffn to the total width of the active experts, 3·d_expert"
        yield record("Table 11", name, group.dense_hidden, value, note=note)


FORMS = {
    "": lambda model: FLOPS["tian-printed"].per_token(model, 4096),
    "Eqs. 10 and 11 as printed, without the logits of Eq. 12": lambda model: (
        FLOPS["tian-printed"].per_token(model, 4096) - 3 * flops_per_token(model, 4096).unembedding
    ),
    "attention of 2d²·(2 + 2·n_kv/n_h), shared experts of 6·d·d_expert, no logits": lambda model: FLOPS[
        "tian"
    ].per_token(model, 4096),
}
"""Functions that compute M, keyed by their assumptions about Appendix I."""


def _table_12() -> list[tuple[Group, list[Architecture]]]:
    shapes = [shapes for several in TABLE_12.values() for shapes in several]
    return [(group, [group.model(*widths) for widths in own]) for group, own in zip(GROUPS, shapes, strict=True)]


def _equal_compute() -> Records:
    where, most = "Table 12 and Appendix I", dict.fromkeys(FORMS, 0.0)
    note = "Eq. 10 has 1 instead of 2, and the shared expert has 4 instead of 6"
    for group, models in _table_12():
        spread = {name: _spread([form(model) for model in models]) for name, form in FORMS.items()}
        most = {name: max(most[name], spread[name]) for name in FORMS}
        name = f"standard deviation of M in the group of {short(group.flops)} FLOPs, as a share ('constant')"
        yield record(where, name, "<0.001", *(Reading(share, form) for form, share in spread.items()), note=note)
    values = [Reading(share, form) for form, share in most.items()]
    yield record(where, "largest of the six standard deviations", "<0.001", *values, note=note)


def _attention_shares(model: Architecture) -> dict[str, float]:
    """Return attention's percentage of a model's FLOPs, keyed by the assumption about Eqs. 10 to 12."""
    f = flops_per_token(model, 4096)
    whole, causal = (f.attention_projections + s for s in (f.attention_scores, f.attention_scores_causal))
    experts = f.routed_experts + f.shared_experts
    fixed = "2 instead of 1 in Eq. 10 and 6 instead of 4 in the shared expert"
    parts = {
        "": (whole - 2 * model.model_dim**2 * model.num_layers, experts - f.shared_experts / 3 + f.unembedding),
        fixed: (whole, experts + f.unembedding),
        f"{fixed}, and half of the scores by a causal mask": (causal, experts + f.unembedding),
        f"{fixed}, and no logits": (whole, experts),
    }
    return {name: 100 * attention / (attention + rest) for name, (attention, rest) in parts.items()}


def _attention() -> Records:
    each = [_attention_shares(model) for _, models in _table_12() for model in models]
    shares = {name: [one[name] for one in each] for name in each[0]}
    where = "Appendix F.4"
    ends = [Reading(f"{min(own):.0f} to {max(own):.0f}", name) for name, own in shares.items()]
    note = f"by Eqs. 10 to 12 as printed the lowest is {min(shares['']):.4g} %, and no reading gives both ends"
    name = "lowest and highest share of attention in the FLOPs of Table 12"
    yield record(where, name, "20 to 50", *ends, unit="%", note=note)
    inside = [Reading(sum(20 <= share <= 50 for share in own), name) for name, own in shares.items()]
    yield record(where, "models of Table 12 whose attention has 20 to 50 % of the FLOPs", str(len(each)), *inside)


def _spread(scales: list[float]) -> float:
    return statistics.pstdev(scales) / statistics.mean(scales)


def _sums() -> Records:
    yield record("Table 4", "sum of the shares of the training data", "100.0", sum(TABLE_4), unit="%")
    for which, model in enumerate(("Dense-6.1B", "MoE-mini")):
        for category, row in TABLE_7.items():
            mean = statistics.mean(row[2 + which])
            values = mean, Reading(mean, "cut off after one digit", "down")
            yield record("Tables 2 and 7", f"mean of {category}, {model}", row[which], *values)
        scores = [score for row in TABLE_7.values() for score in row[2 + which]]
        means = statistics.mean(statistics.mean(row[2 + which]) for row in TABLE_7.values())
        values = means, Reading(statistics.mean(scores), "the mean of all 34 scores, not of the five categories")
        yield record("Tables 2 and 7", f"overall mean, {model}", ("44.0", "45.5")[which], *values)
    code = TABLE_7["Code"]
    yield record("Appendix H", "MoE-mini's lead on HumanEval-Plus", ">16", code[3][2] - code[2][2])
    yield record("Appendix H", "MoE-mini's lead overall, 45.5 - 44.0", "1.5", 45.5 - 44.0)
