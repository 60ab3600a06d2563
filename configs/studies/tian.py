"""The experiments of Tian et al. (2025), "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts".

Purpose:  measure the effect of activation ratio, granularity, shared experts, dense layers and attention on efficiency
          leverage, and fit the laws of learning rate, batch size, model scale and tokens that these runs use.
Paper:    Tables 8 to 12 and 14; Appendix E.1 and Figures 7 and 8; Appendix E.2, Table 5 and Figure 9; Appendix F.2 and
          Figure 12; Tables 1 and 13 (MoE-mini, Dense-6.1B); Appendix D.
Command:  moejax study --config=configs/studies/tian.py:table-8 --config.recipe.data.source=PATH
          The argument selects a part; times are at 40 % MFU, and Appendix L's times are in parentheses:

| part                  | trains                                              | FLOPs  | H800 hours       |
|-----------------------|-----------------------------------------------------|--------|------------------|
| :main (default)       | all tables together                                 | 3.6e22 | 21,300 (200,000) |
| :table-8              | activation ratio                                    | 9.4e21 | 5,660            |
| :table-9              | granularity                                         |        |                  |
| :table-10             | shared experts                                      |        |                  |
| :table-11             | dense layers                                        |        |                  |
| :table-12             | attention and experts                               |        |                  |
| :table-14             | heads                                               |        |                  |
| :hyperparameters      | Appendix E.1, its dense twin, and Figure 8's ratios | 4.0e22 | 24,800           |
| :allocation           | Appendix E.2                                        | 5.7e21 | 3,530            |
| the two above         |                                                     |        | (360,000)        |
| :balance              | Figure 12                                           | 1.4e22 | 8,550            |
| :shared               | Table 10 with the share of 16.7 % of Appendix F.3   | 8.3e21 | 4,990            |
| :models               | MoE-mini and Dense-6.1B on 1T tokens                | 5.9e22 | 38,700 (120,000) |
| :table-13             | its eight models with its parallel settings         |        |                  |
| :tiny                 | small versions of Tables 8 and 9, minutes           | 6.3e12 |                  |
| :tiny-hyperparameters | small version, minutes                              | less   |                  |
| :tiny-allocation      | small version, minutes                              | less   |                  |
| :tiny-balance         | small version, minutes                              | less   |                  |

Data:     your own, with a tokenizer of at most 126,464 entries, in sequences of 4096 (Appendix D). Table 4's mixture is
          --config.recipe.data.named_mixture=tian-2025, with a folder of its eleven parts as data.source.
Recipe:   Each table gives its rate and batch size. D = C/M, where C is the printed maximum and M is defined by
          Appendix I and used as in Table 12. The warm-up is 1 %, followed by an exponential decay to a tenth
          (Appendix D). The paper does not print the decay's share of the run; here it is 20 %.
Cost:     see the table.
Types:    bfloat16 compute, float32 masters and moments (Appendix D); float32 in the tiny parts.
Expected: The tables have 48, 36, 36, 24, 30 and 26 runs. Leverage grows as fewer experts are active, has an optimum in
          granularity near 12, and depends little on the other factors (Section 4). A study ends with Algorithm 1 and
          its table of leverages, and with Eqs. 4, 5 and 6 as far as its runs determine them; leverage needs the dense
          runs of Table 8. :tiny has losses below the unigram entropy, and leverages that are not relevant for large
          models.

Corrected for consistency with the rest of the document, each with a note in the study:

- Table 10's E_s = 2 with E_a = 11, whose sum is not twelve.
- Table 11's d_ffn (printed 1280 to 5120; Appendix F.4 has 3·d_expert).
- Table 12's rates (printed ten times Table 8's from 6e19 FLOPs on).
- Table 14's 6 heads with 4 key-value heads (built with 3).

Key-value heads of Tables 9 to 11 are those of Table 8. MoE-mini's one dense layer follows from its size; its rate and
batch are not printed and follow Eq. 5.

Inferred:

- Table 8's first d_expert is 384, where 320 is printed. For 384: Figure 4's G of 2, and Tables 9 to 11. For 320: Tables
  12 and 14, which keep it here, and Table 11's d_ffn, which is 4·d_expert in every row only with 320. So :table-8's
  first model with 64 experts is not that of Table 12 or 14.
- :shared has models with E_a = 10 and E_s = 2, which Table 10 does not print. Appendix F.3 finds S = 16.7 % best up to
  1e20 FLOPs, so they were trained, and the one E_s = 2 with E_a = 11 may be a misprint of such a row.
- Every model is trained to its "Max training FLOPs" alone, 2e18 to 6e20. Section 3 and Appendix F.1 have budgets of
  1e18 to 3e20, half of each. Whether losses are read halfway is not stated, and before the decay of the rate they are
  not final losses. So a family has six budgets, which give fewer leverages than the paper's 224.
- Appendix E.1's rates are spaced by half a power of two, because only the ends are printed. Each of its budgets, 3e17
  to 3e20 by half decades, has the model of Table 8 with the nearest budget. Its dense twin has a feed-forward as wide
  as the five active experts together, so that M is the same.
- Figure 8's activation ratios of 4.7 and 10.9 % are 2 and 6 of 64 experts with one shared, (E_a + E_s)/E, as 7.8 % is
  4 of 64; other definitions of A do not give these numbers.
- Appendix E.2 takes its losses "from hyperparameter scaling experiments", the runs of Appendix E.1, whose sizes are not
  printed. :allocation trains other models: Table 8's shapes and six more of similar proportions, those within a factor
  of four of Table 5's M at each budget. Rates and batches of both kinds follow Eq. 5, because the dense constants are
  not printed.
- Figure 12's runs are Table 9's, with twins that have a balance loss of 0.001, the only setting that Appendix F.2
  changes.
- Table 13's first six models are Table 9's with 256 experts, whose widths they have. Its pipeline of two stages for 22
  layers has no counterpart here: layers are scanned on every device, and parameters are sharded over fsdp instead.
  Expert and tensor parallelism are as printed.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.papers.tian.tables import EXPERTS, GROUPS, TABLE_9, TABLE_12

SEQUENCE = 4096
BATCHES_12 = {98: 96, 147: 160, 228: 224, 342: 320, 531: 512, 795: 768}
"""Batches of Table 12 in sequences, by those of Table 8."""
HEADS_14 = {
    384: (2, 4, 6, 8, 12),
    512: (2, 4, 8, 12, 16),
    640: (2, 4, 8, 10, 16, 20),
    768: (6, 8, 12, 16, 24),
    1024: (4, 8, 16, 24, 32),
}
"""Numbers of heads by d_model (Table 14)."""
H800_HOURS = 200_000
"""H800 hours of the main experiments (Appendix L)."""


def get_config(table: str = "main") -> ConfigDict:
    """Return the study of one table."""
    config = ConfigDict()
    config.name = f"tian-{table}"
    config.seed = 0
    if table in TINY:
        return TINY[table](config)
    config.recipe = recipe()
    if table == "models":
        return models(config)
    if table not in ("main", *TABLES, *SWEEPS):
        known = ", ".join(["main", *TABLES, *SWEEPS, "models", *TINY])
        raise ValueError(f"there is no {table!r}; there are {known}")
    laws = ["chinchilla", "effective_params"]
    if table in SWEEPS:
        # Runs that differ in the learning rate or a loss weight are not replicates for a law of sizes.
        laws = ["effective_params"] if table == "allocation" else []
    chosen = TABLES.values() if table == "main" else [(TABLES | SWEEPS)[table]]
    rows = [row for which in chosen for row in which()]
    config.models = {name: model for name, model, *_ in rows}
    # A family's curve goes through its best run at every budget; only tables that vary just A and G have such curves.
    leverage = [name for name in config.models if name.startswith(("t8-", "t9-"))] if table == "main" else []
    config.analysis = dict(laws=laws, hold_out="flops", decision_flops=1e21, recipe="tian", recipe_models=leverage)
    config.recipes = {name: exceptions for name, _, exceptions, *_ in rows}
    config.notes = {name: note for name, _, _, _, note in rows if note}
    stated = [dict(quantity="flops", value=sum(row[3] for row in rows), source="'Max training FLOPs', without logits")]
    if table == "main":
        source = "Appendix L, 'main architectural scaling experiments'; H800, MFU not printed"
        stated.append(dict(quantity="chip_hours", value=H800_HOURS, source=source))
    config.stated = stated
    return table_13(config) if table == "table-13" else config


def row(name, group, model, note="", *, rate=None, sequences=None, flops=None, **changes):
    """Return the name, architecture, recipe, FLOPs and note of a run in a group of Table 8."""
    *_, printed_rate, printed_batch, most, _, _ = group
    flops = flops or most
    tokens = int(flops / FLOPS["tian"].per_token(Architecture(**model), SEQUENCE))
    exceptions = dict(
        budgets_tokens=[tokens],
        batch_tokens=int(sequences or printed_batch) * SEQUENCE,
        optimizer=dict(learning_rate=float(rate or printed_rate), warmup_tokens=tokens // 100),
        **changes,
    )
    return name, model, exceptions, flops, note


def mixture(
    group, expert, experts, top_k, shared=1, *, width=None, heads=None, kv_heads=None, layers=None, **rest
) -> dict[str, Any]:
    """Return an architecture of a group of Table 8 with some changes."""
    width, heads = width or group[1], heads or group[2]
    return dict(
        vocab_size=126_464,
        model_dim=width,
        num_layers=layers or group[0],
        num_heads=heads,
        num_kv_heads=kv_heads or group[3],
        head_dim=width // heads,
        num_experts=experts,
        top_k=top_k,
        expert_hidden=expert,
        num_shared_experts=shared,
        tied_embeddings=False,
        norm_topk_prob=False,
        **rest,
    )


def corrected(group) -> tuple[int, str]:
    """Return Table 8's d_expert, and a note on its correction."""
    # Table 8 prints 320 in its first row.
    width, printed = group[1], group[4]
    return width, f"d_expert is printed {printed}, which is not G = 2" if printed != width else ""


def table_8():
    """Yield models of 2 (dense) to 256 experts, 2 of which are active."""
    for number, group in enumerate(GROUPS, start=1):
        expert, note = corrected(group)
        for experts in (2, 4, 8, 16, 32, 64, 128, 256):
            yield row(f"t8-{number}-E{experts}", group, mixture(group, expert, experts, 2), note)


def table_9():
    """Yield finer experts at equal total and active width."""
    for number, group in enumerate(GROUPS, start=1):
        for experts, expert in zip(EXPERTS, TABLE_9[group[1]], strict=True):
            cut = experts // 64
            yield row(f"t9-{number}-E{experts}", group, mixture(group, expert, experts, 2 * cut, cut))


def table_10():
    """Yield different shares of shared experts among twelve active experts."""
    for number, group in enumerate(GROUPS, start=1):
        expert = TABLE_9[group[1]][3]
        for top_k in (2, 4, 6, 8, 11, 12):
            # The fourth group prints E_s = 2 beside E_a = 11.
            slip = "E_s is printed 2, beside E_a = 11 of 12; or E_a = 11 is a slip for 10"
            note = slip if (number, top_k) == (4, 11) else ""
            yield row(f"t10-{number}-S{12 - top_k}", group, mixture(group, expert, 256, top_k, 12 - top_k), note)


def shared():
    """Yield Table 10 and, for every group, the share of 16.7 % that Appendix F.3 finds best up to 1e20 FLOPs."""
    yield from table_10()
    for number, group in enumerate(GROUPS, start=1):
        note = "E_a = 10 and E_s = 2 are in no row of Table 10; Appendix F.3 has this S = 16.7 %"
        yield row(f"t10-{number}-S2", group, mixture(group, TABLE_9[group[1]][3], 256, 10, 2), note)


def table_11():
    """Yield different numbers of dense layers at the start of 60 layers."""
    for number, group in enumerate(GROUPS, start=1):
        expert = group[1]
        for dense in (0, 1, 2, 3):
            # d_ffn is printed 1280, 2048, 2560, 3072, 4096 and 5120.
            model = mixture(group, expert, 64, 2, layers=60, num_dense_layers=dense, dense_hidden=3 * expert)
            note = f"d_ffn is printed {group[9]}, where equal FLOPs need {3 * expert}" if dense else ""
            yield row(f"t11-{number}-dense{dense}", group, model, note)


def table_12():
    """Yield different splits between attention and experts at equal FLOPs per token."""
    several = [group for groups in TABLE_12.values() for group in groups]
    for number, (group, shapes) in enumerate(zip(GROUPS, several, strict=True), start=1):
        # eta is printed 9.5e-3, 8.1e-3 and 7.0e-3 in the last three groups.
        note = f"eta is printed {group[8]}, ten times Table 8's" if group[8] != group[5] else ""
        for width, expert in shapes:
            model = mixture(group, expert, 64, 2, width=width)
            yield row(f"t12-{number}-d{width}", group, model, note, sequences=BATCHES_12[int(group[6])])


def table_14():
    """Yield different numbers of heads."""
    for number, group in enumerate(GROUPS[:5], start=1):
        expert = group[4]
        for heads in HEADS_14[group[1]]:
            kv_heads = math.gcd(heads, group[3]) if heads != 6 or group[3] != 4 else 3
            odd = f"{group[3]} key-value heads do not divide {heads} heads; {kv_heads} are built"
            note = odd if kv_heads != group[3] else ""
            yield row(
                f"t14-{number}-H{heads}", group, mixture(group, expert, 64, 2, heads=heads, kv_heads=kv_heads), note
            )


TABLES = {
    "table-8": table_8,
    "table-9": table_9,
    "table-10": table_10,
    "table-11": table_11,
    "table-12": table_12,
    "table-14": table_14,
}


BUDGETS = (3e17, 1e18, 3e18, 1e19, 3e19, 1e20, 3e20)
"""Training FLOPs (Appendix E)."""


def dense(model):
    """Return the dense twin of an MoE model: its feed-forward layer is as wide as all active experts, so M is equal."""
    plain = {name: value for name, value in model.items() if name not in OF_EXPERTS}
    return plain | dict(dense_hidden=(model["top_k"] + model["num_shared_experts"]) * model["expert_hidden"])


OF_EXPERTS = ("num_experts", "top_k", "expert_hidden", "num_shared_experts", "norm_topk_prob")
"""Settings that a dense model does not have."""


def grid(name, group, model, flops):
    """Yield Appendix E.1's grid: rates of 2^-11 to 2^-9 by batches of 2^18 to 2^21 tokens."""
    for half_power in range(-22, -17):
        for power in (18, 19, 20, 21):
            called = f"{name}C{flops:.0e}-rate{half_power / 2:g}-batch{power}".replace(".", "_").replace("+", "")
            rate, sequences = 2 ** (half_power / 2), 2**power // SEQUENCE
            yield row(called, group, model, rate=rate, sequences=sequences, flops=flops)


def hyperparameters():
    """Yield Appendix E.1's models: 4 of 64 experts and a shared expert (A = 7.8 %), and the dense twin; at 3e20 FLOPs
    also 2 and 6 of 64 experts.
    """
    for flops in BUDGETS:
        group = min(GROUPS, key=lambda group: abs(math.log(group[7] / flops)))
        model = mixture(group, group[1], 64, 4)
        yield from grid("", group, model, flops)
        yield from grid("dense-", group, dense(model), flops)
    group = GROUPS[4]
    for name, top_k in VALIDATED.items():
        yield from grid(f"{name}-", group, mixture(group, group[1], 64, top_k), BUDGETS[-1])


VALIDATED = {"A4_7": 2, "A10_9": 6}
"""Active experts of 64 by the printed activation ratio (Figure 8)."""

LADDER = (
    (4, 192, 4, 2),
    (6, 256, 4, 2),
    *(group[:4] for group in GROUPS),
    (24, 1536, 24, 4),
    (28, 1792, 28, 4),
    (32, 2304, 36, 4),
    (40, 2816, 44, 4),
)
"""Layers, d_model, heads and key-value heads of Table 8's models, and of smaller and larger models."""
WITHIN = 4.0
"""Maximum ratio between a size and Table 5's best size."""


def allocation():
    """Yield Appendix E.2: at each budget sizes around Table 5's optimum, as MoE models and dense twins; D = C/M."""
    best = {part: published("allocation", f"tian-2025-{part}").law for part in ("moe", "dense")}
    tried = published("hyperparameters", "tian-2025").law
    for flops in BUDGETS:
        settings = tried(Design(flops=flops))
        rate, sequences = float(settings["learning_rate"]), round(float(settings["batch_tokens"]) / SEQUENCE)
        for layers, width, heads, kv_heads in LADDER:
            group = (layers, width, heads, kv_heads, width, rate, sequences, flops, None, None)
            whole = mixture(group, width, 64, 4)
            scale = FLOPS["tian"].per_token(Architecture(**whole), SEQUENCE)
            for part, model in (("moe", whole), ("dense", dense(whole))):
                if abs(math.log(scale / best[part](Design(flops=flops))["flops_per_token"])) < math.log(WITHIN):
                    name = f"{part}-C{flops:.0e}-L{layers}-d{width}".replace("+", "")
                    yield row(name, group, model, rate=rate, sequences=sequences, flops=flops)


WEAK_BALANCE = 0.001
"""Coefficient of the balance loss under which routing is unbalanced (Appendix F.2); 0.01 elsewhere."""


def balance():
    """Yield Figure 12: Table 9 with the usual and with the weak balance loss."""
    yield from table_9()
    for name, model, exceptions, flops, note in table_9():
        weak = exceptions | dict(loss=dict(balance=WEAK_BALANCE))
        yield f"{name}-weak", model, weak, flops, note


def parallel():
    """Yield Table 13's experimental models: 8 of 256 experts and four shared, experts over eight devices."""
    for name, model, exceptions, flops, note in table_9():
        if model["num_experts"] == 256:
            pipeline = "PP is printed 2 for this model; it has no counterpart here"
            said = "; ".join(filter(None, (note, pipeline if model["num_layers"] == 22 else "")))
            yield name, model, exceptions | dict(mesh=dict(expert=8)), flops, said


def table_13(config: ConfigDict) -> ConfigDict:
    """Return Table 13: the six models above, MoE-mini and Dense-6.1B, each with its printed parallel settings."""
    six, large = config.to_dict(), models(ConfigDict()).to_dict()
    own: dict[str, Any] = dict(batch_tokens="auto", budgets_tokens=large["recipe"]["budgets_tokens"])
    own["optimizer"] = {name: large["recipe"]["optimizer"][name] for name in ("learning_rate", "warmup_tokens")}
    config.models = six["models"] | large["models"]
    config.recipes = six["recipes"] | {name: own | large["recipes"][name] for name in large["models"]}
    config.notes = six["notes"] | large["notes"]
    config.stated = []
    config.analysis = dict(laws=[])
    return config


SWEEPS = {
    "hyperparameters": hyperparameters,
    "allocation": allocation,
    "balance": balance,
    "shared": shared,
    "table-13": parallel,
}


def models(config: ConfigDict) -> ConfigDict:
    """Return MoE-mini and Dense-6.1B on 1T tokens, sharded as in Table 13, with a branch at half for comparison."""
    catalogued = {"MoE-mini": ("moe-mini", dict(expert=8, tensor=2)), "Dense-6_1B": ("dense-6.1b", dict(tensor=2))}
    config.models = {name: dump(CATALOGUE[key].architecture) for name, (key, _) in catalogued.items()}
    config.recipes = {name: dict(mesh=mesh) for name, (_, mesh) in catalogued.items()}
    config.recipe = recipe(
        dict(learning_rate="auto", warmup_tokens=10_000_000_000),
        budgets_tokens=[500_000_000_000, 1_000_000_000_000],
        batch_tokens="auto",
    )
    config.notes = {"MoE-mini": CATALOGUE["moe-mini"].note}
    config.analysis = dict(laws=["chinchilla", "effective_params"], hold_out="flops", decision_flops=1e21)
    source = "Appendix L, 'final validation runs'; H800, MFU not printed"
    config.stated = [dict(quantity="chip_hours", value=120_000, source=source)]
    return config


def recipe(optimizer: dict | None = None, **changes) -> dict:
    """Return the recipe of Appendix D, apart from the settings of each row."""
    schedule = dict(decay_share=0.2, decay_shape="exponential", final_share=0.1)
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=98 * SEQUENCE,
            data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**22),
            optimizer=schedule | dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1) | (optimizer or {}),
            loss=dict(balance=0.01, router_z=0.001),
            initialisation=dict(std=0.006),
            runtime=dict(compute_dtype="bfloat16"),
            checkpoint_tokens=2**31,
        )
        | changes
    )


def tiny(config: ConfigDict) -> ConfigDict:
    """Return Tables 8 and 9: four budgets, 2 (dense) to 16 experts, and 16 of them with finer granularity."""
    config.models, config.recipes = {}, {}
    for width, flops in {32: 6e10, 40: 1.2e11, 48: 2.4e11, 64: 4.8e11}.items():
        cells = [(experts, 2, 1, width) for experts in (2, 4, 8, 16)]
        cells += [(32, 4, 2, width // 2), (64, 8, 4, width // 4)]
        for experts, top_k, shared, expert in cells:
            model = small(width, experts, top_k, shared, expert)
            name = f"d{width}-E{experts}"
            config.models[name] = model
            config.recipes[name] = dict(budgets_tokens=[tokens_for(flops, model)])
    return small_study(config, laws=["effective_params"], hold_out="flops", resamples=40)


def tiny_hyperparameters(config: ConfigDict) -> ConfigDict:
    """Return Appendix E.1: three budgets, three rates by two batches, 4 of 16 experts and the dense twin; then 2 of 16
    experts.
    """
    config.models, config.recipes = {}, {}
    sizes = {32: 2e10, 40: 4e10, 48: 8e10}
    cells = [(width, top_k) for width in sizes for top_k in (4, 0)] + [(48, 2)]
    for width, top_k in cells:
        model = small(width, 16, top_k or 4, 1, width)
        model = model if top_k else dense(model)
        for power, batch in itertools.product((-8, -7, -6), (512, 2_048)):
            name = f"{f'E16-k{top_k}' if top_k else 'dense'}-d{width}-rate{power}-batch{batch}"
            config.models[name] = model
            tokens = tokens_for(sizes[width], model)
            rate = dict(learning_rate=2.0**power, warmup_tokens=tokens // 20)
            config.recipes[name] = dict(budgets_tokens=[tokens], batch_tokens=batch, optimizer=rate)
    return small_study(config)


def tiny_allocation(config: ConfigDict) -> ConfigDict:
    """Return Appendix E.2: four budgets split over sizes near their best, as MoE models and dense twins."""
    config.models, config.recipes = {}, {}
    splits = {16: (3e10, 6e10, 1.2e11), 24: (3e10, 6e10, 1.2e11, 2.4e11), 32: (3e10, 6e10, 1.2e11, 2.4e11)}
    splits |= {48: (6e10, 1.2e11, 2.4e11), 64: (1.2e11, 2.4e11)}
    for width, spent in splits.items():
        whole = small(width, 16, 4, 1, width)
        for name, model in ((f"E16-d{width}", whole), (f"dense-d{width}", dense(whole))):
            config.models[name] = model
            # With the usual batch, the largest models would train for only a dozen steps.
            budgets = [tokens_for(flops, model) for flops in spent]
            config.recipes[name] = dict(budgets_tokens=budgets, batch_tokens=1_024)
    return small_study(config)


def tiny_balance(config: ConfigDict) -> ConfigDict:
    """Return Figure 12: two budgets, three granularities, the usual and the weak balance loss."""
    config.models, config.recipes = {}, {}
    for width, flops in {32: 6e10, 64: 2.4e11}.items():
        for cut, (name, weight) in itertools.product((1, 2, 4), {"usual": 0.01, "weak": WEAK_BALANCE}.items()):
            model = small(width, 16 * cut, 2 * cut, cut, width // cut)
            called = f"d{width}-E{16 * cut}-{name}"
            config.models[called] = model
            config.recipes[called] = dict(budgets_tokens=[tokens_for(flops, model)], loss=dict(balance=weight))
    return small_study(config)


def small(width, experts, top_k, shared, expert) -> dict[str, Any]:
    """Return an MoE model with two layers on bytes."""
    return dict(
        vocab_size=257,
        model_dim=width,
        num_layers=2,
        num_heads=width // 8,
        num_kv_heads=1,
        head_dim=8,
        num_experts=experts,
        top_k=top_k,
        expert_hidden=expert,
        num_shared_experts=shared,
        norm_topk_prob=False,
    )


def tokens_for(flops, model) -> int:
    """Return D = C/M in sequences of 128 tokens."""
    return int(flops / FLOPS["tian"].per_token(Architecture(**model), 128))


def small_study(config: ConfigDict, laws=(), **analysis) -> ConfigDict:
    """Apply the settings that the small versions share."""
    config.recipe = recipe(
        dict(learning_rate=6e-3, warmup_tokens=16_384),
        batch_tokens=4_096,
        data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
        initialisation=dict(std=0.0),
        runtime=dict(),
        checkpoint_tokens=131_072,
    )
    config.analysis = dict(laws=list(laws), decision_flops=1e13, recipe="tian") | analysis
    return config


TINY = {
    "tiny": tiny,
    "tiny-hyperparameters": tiny_hyperparameters,
    "tiny-allocation": tiny_allocation,
    "tiny-balance": tiny_balance,
}
