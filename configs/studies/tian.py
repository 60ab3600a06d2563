"""The experiments of Tian et al. (2025), "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts".

Purpose:  how activation ratio, granularity, shared experts, dense layers and attention change efficiency leverage.
Paper:    Tables 8 to 12 and 14, Appendix E.1 (hyperparameters), Tables 1 and 13 (MoE-mini, Dense-6.1B), Appendix D.
Command:  moejax study --config=configs/studies/tian.py:table-8 --config.recipe.data.source=PATH
          :main (the default), all tables together; :table-8 activation ratio, :table-9 granularity, :table-10 shared
          experts, :table-11 dense layers, :table-12 attention and experts, :table-14 heads; :hyperparameters, the
          grid of rates and batches; :models, MoE-mini and Dense-6.1B on 1T tokens; :tiny, Table 8's design here.
Data:     yours, with a tokenizer of at most 126,464 entries, in sequences of 4096 (Appendix D).
Recipe:   each table's own rate and batch; D = C/M, with C the printed maximum and M of Appendix I as Table 12 uses it.
          Warm-up of 1 % and an exponential decay to a tenth (Appendix D); its share of the run is not printed: 20 %.
Cost:     :main 3.6e22 FLOPs, 21,300 H800 hours at 40 % MFU (Appendix L: 200,000); :table-8 9.4e21 and 5,660 hours;
          :hyperparameters 1.2e22 and 7,520; :models 5.9e22 and 38,700 (120,000); :tiny 4.0e12 FLOPs, minutes here.
Expected: 48, 36, 36, 24, 30 and 26 runs. Leverage grows as fewer experts are active, has an optimum in granularity
          near 12, and depends little on the rest (Section 4). Of :tiny, losses below the unigram entropy and a fit.

Corrected as the rest of the document demands, each with a note in the study: Table 8's first d_expert (320, where G = 2
needs 384), Table 10's E_s = 2 beside E_a = 11, Table 11's d_ffn (printed 1280 to 5120; Appendix F.4 has 3·d_expert),
Table 12's rates (printed ten times Table 8's from 6e19 FLOPs on), and Table 14's 6 heads with 4 key-value heads (built
with 3; its first d_expert stays 320, as in Table 12). Key-value heads of Tables 9 to 11 are those of Table 8.
MoE-mini's one dense layer follows from its size; its rate and batch are not printed and follow Eq. 5. Table 13's
pipeline of 2 for 22 layers has no counterpart here; expert and tensor parallelism are as printed.
"""

from __future__ import annotations

import math
from typing import Any

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS
from moejax.papers.tian_tables import EXPERTS, GROUPS, TABLE_9, TABLE_12

SEQUENCE = 4096
BATCHES_12 = {98: 96, 147: 160, 228: 224, 342: 320, 531: 512, 795: 768}
"""Table 12's batches, in sequences, by Table 8's."""
HEADS_14 = {
    384: (2, 4, 6, 8, 12),
    512: (2, 4, 8, 12, 16),
    640: (2, 4, 8, 10, 16, 20),
    768: (6, 8, 12, 16, 24),
    1024: (4, 8, 16, 24, 32),
}
"""Table 14: heads by d_model."""
H800_HOURS = 200_000
"""Appendix L, for the main experiments."""


def get_config(table: str = "main") -> ConfigDict:
    """The study of one table."""
    config = ConfigDict()
    config.name = f"tian-{table}"
    config.seed = 0
    if table == "tiny":
        return tiny(config)
    config.recipe = recipe()
    config.analysis = dict(laws=["chinchilla", "effective_params"], hold_out="flops", decision_flops=1e21)
    if table == "models":
        return models(config)
    chosen = TABLES if table == "main" else {table: TABLES[table]} if table in TABLES else {}
    rows = [row for which in chosen.values() for row in which()] if chosen else []
    if table == "hyperparameters":
        rows = list(hyperparameters())
    elif not rows:
        raise ValueError(f"there is no {table!r}; there are main, {', '.join(TABLES)}, hyperparameters, models, tiny")
    config.models = {name: model for name, model, *_ in rows}
    config.recipes = {name: exceptions for name, _, exceptions, *_ in rows}
    config.notes = {name: note for name, _, _, _, note in rows if note}
    stated = [dict(quantity="flops", value=sum(row[3] for row in rows), source="'Max training FLOPs', without logits")]
    if table == "main":
        source = "Appendix L, 'main architectural scaling experiments'; H800, MFU not printed"
        stated.append(dict(quantity="chip_hours", value=H800_HOURS, source=source))
    config.stated = stated
    return config


def row(name, group, model, note="", *, rate=None, sequences=None, flops=None):
    """Name, architecture, recipe, FLOPs and note of a run of a group of Table 8."""
    *_, printed_rate, printed_batch, most, _, _ = group
    flops = flops or most
    tokens = int(flops / FLOPS["tian"].per_token(Architecture(**model), SEQUENCE))
    exceptions = dict(
        budgets_tokens=[tokens],
        batch_tokens=int(sequences or printed_batch) * SEQUENCE,
        optimizer=dict(learning_rate=float(rate or printed_rate), warmup_tokens=tokens // 100),
    )
    return name, model, exceptions, flops, note


def mixture(group, expert, experts, top_k, shared=1, *, width=None, heads=None, kv_heads=None, layers=None, **rest):
    """An architecture of a group of Table 8, some of it changed."""
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
    """Table 8's d_expert, and what was corrected."""
    # Table 8 prints 320 in its first row.
    width, printed = group[1], group[4]
    return width, f"d_expert is printed {printed}, which is not G = 2" if printed != width else ""


def table_8():
    """Experts from 2, which is dense, to 256, of which 2 are active."""
    for number, group in enumerate(GROUPS, start=1):
        expert, note = corrected(group)
        for experts in (2, 4, 8, 16, 32, 64, 128, 256):
            yield row(f"t8-{number}-E{experts}", group, mixture(group, expert, experts, 2), note)


def table_9():
    """Experts cut finer at equal total and active width."""
    for number, group in enumerate(GROUPS, start=1):
        for experts, expert in zip(EXPERTS, TABLE_9[group[1]], strict=True):
            cut = experts // 64
            yield row(f"t9-{number}-E{experts}", group, mixture(group, expert, experts, 2 * cut, cut))


def table_10():
    """Shared among twelve active experts."""
    for number, group in enumerate(GROUPS, start=1):
        expert = TABLE_9[group[1]][3]
        for top_k in (2, 4, 6, 8, 11, 12):
            # The fourth group prints E_s = 2 beside E_a = 11.
            note = "E_s is printed 2, beside E_a = 11 of 12" if (number, top_k) == (4, 11) else ""
            yield row(f"t10-{number}-S{12 - top_k}", group, mixture(group, expert, 256, top_k, 12 - top_k), note)


def table_11():
    """The first of 60 layers dense."""
    for number, group in enumerate(GROUPS, start=1):
        expert = group[1]
        for dense in (0, 1, 2, 3):
            # d_ffn is printed 1280, 2048, 2560, 3072, 4096 and 5120.
            model = mixture(group, expert, 64, 2, layers=60, num_dense_layers=dense, dense_hidden=3 * expert)
            note = f"d_ffn is printed {group[9]}, where equal FLOPs need {3 * expert}" if dense else ""
            yield row(f"t11-{number}-dense{dense}", group, model, note)


def table_12():
    """Attention against experts at equal FLOPs per token."""
    several = [group for groups in TABLE_12.values() for group in groups]
    for number, (group, shapes) in enumerate(zip(GROUPS, several, strict=True), start=1):
        # eta is printed 9.5e-3, 8.1e-3 and 7.0e-3 in the last three groups.
        note = f"eta is printed {group[8]}, ten times Table 8's" if group[8] != group[5] else ""
        for width, expert in shapes:
            model = mixture(group, expert, 64, 2, width=width)
            yield row(f"t12-{number}-d{width}", group, model, note, sequences=BATCHES_12[int(group[6])])


def table_14():
    """Heads."""
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


def hyperparameters():
    """Appendix E.1: rates of 2^-11 to 2^-9 by batches of 2^18 to 2^21 tokens, 4 of 64 experts and a shared one.

    The document prints the ends of the grid; rates go by half a power here, and each budget has the model of Table 8
    whose own budget is nearest.
    """
    for flops in (3e17, 1e18, 3e18, 1e19, 3e19, 1e20, 3e20):
        group = min(GROUPS, key=lambda group: abs(math.log(group[7] / flops)))
        model = mixture(group, group[1], 64, 4)
        for half_power in range(-22, -17):
            for power in (18, 19, 20, 21):
                name = f"C{flops:.0e}-rate{half_power / 2:g}-batch{power}".replace(".", "_").replace("+", "")
                rate, sequences = 2 ** (half_power / 2), 2**power // SEQUENCE
                yield row(name, group, model, rate=rate, sequences=sequences, flops=flops)


def models(config: ConfigDict) -> ConfigDict:
    """MoE-mini and Dense-6.1B on 1T tokens, sharded as in Table 13; a branch at half of it to hold the other to."""
    catalogued = {"MoE-mini": ("moe-mini", dict(expert=8, tensor=2)), "Dense-6_1B": ("dense-6.1b", dict(tensor=2))}
    config.models = {name: dump(CATALOGUE[key].architecture) for name, (key, _) in catalogued.items()}
    config.recipes = {name: dict(mesh=mesh) for name, (_, mesh) in catalogued.items()}
    config.recipe = recipe(
        dict(learning_rate="auto", warmup_tokens=10_000_000_000),
        budgets_tokens=[500_000_000_000, 1_000_000_000_000],
        batch_tokens="auto",
    )
    config.notes = {"MoE-mini": CATALOGUE["moe-mini"].note}
    source = "Appendix L, 'final validation runs'; H800, MFU not printed"
    config.stated = [dict(quantity="chip_hours", value=120_000, source=source)]
    return config


def recipe(optimizer: dict | None = None, **changes) -> dict:
    """Appendix D, apart from what each row has of its own."""
    schedule = dict(decay_share=0.2, decay_shape="exponential", final_share=0.1)
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=98 * SEQUENCE,
            data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**22),
            optimizer=schedule | dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1) | (optimizer or {}),
            loss=dict(balance=0.01, router_z=0.001),
            initialisation=dict(std=0.006),
            checkpoint_tokens=2**31,
        )
        | changes
    )


def tiny(config: ConfigDict) -> ConfigDict:
    """Table 8's design: three groups of growing compute, 2 (dense) to 16 experts."""
    sizes = {32: 1.2e11, 48: 2.5e11, 64: 5e11}
    shape: dict[str, Any] = dict(
        vocab_size=257, num_layers=2, head_dim=16, top_k=2, num_shared_experts=1, norm_topk_prob=False
    )
    config.models, config.recipes = {}, {}
    for width, flops in sizes.items():
        heads = dict(num_heads=width // 16, num_kv_heads=1)
        for experts in (2, 4, 8, 16):
            name = f"d{width}-E{experts}"
            model: dict[str, Any] = shape | heads | dict(model_dim=width, num_experts=experts, expert_hidden=width)
            tokens = int(flops / FLOPS["tian"].per_token(Architecture(**model), 128))
            config.models[name] = model
            config.recipes[name] = dict(budgets_tokens=[tokens])
    config.recipe = recipe(
        dict(learning_rate=6e-3, warmup_tokens=16_384),
        batch_tokens=4_096,
        data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
        initialisation=dict(std=0.0),
        checkpoint_tokens=131_072,
    )
    config.analysis = dict(laws=["effective_params"], hold_out="flops", resamples=40, decision_flops=1e13)
    return config
