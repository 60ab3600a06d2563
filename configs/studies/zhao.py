"""The 446 experiments, in 419 runs, of Zhao et al. (2025), "Towards a Comprehensive Scaling Law of Mixture-of-Experts".

Purpose:  reproduce the runs to which the five-factor law L(N, D, N_a, G, S) was fitted.
Paper:    Table 1 (five models, hyperparameters), Table 6 (446 configurations), Eqs. 2 and 3, Appendix H.
Command:  moejax study --config=configs/studies/zhao.py:G --config.recipe.data.source=PATH
          The argument selects a part; times are at 40 % MFU. --dry-run lists every run.

| part           | trains                                                   | FLOPs  | H800 hours |
|----------------|----------------------------------------------------------|--------|------------|
| :all (default) | all rows of Table 6 (3.5e22 FLOPs without shared trunks) | 2.2e22 | 14,500     |
| :G             | one group of rows 0 to 267, which the paper fits         | 8.9e20 | 559        |
| :N :S :N_a     | the other groups of rows 0 to 267                        |        |            |
| :small-G       | rows 268 to 357                                          |        |            |
| :validation    | rows 358 to 445                                          |        |            |
| :table-1       | the five models of Table 1                               |        |            |
| :cosine        | these models with the schedules of Table 1 and Section 3 | 1.7e21 | 1,120      |
| :tiny          | a small version of the design, minutes on two cores      | 4.0e12 |            |
| :tiny-cosine   | a small version of :cosine, minutes on two cores         | 4.1e12 |            |

Data:     your own, with a tokenizer of at most 50,000 entries: the paper prints neither corpus nor vocabulary.
Recipe:   one trunk per model and a branch per D. Section 3 specifies warm-up, stable and decay, although Table 1 says
          cosine: the decay here is a cosine to 0 over the last tenth. AdamW, rate 3e-4, 500 steps of warm-up, 2Mi
          tokens per batch.
Cost:     see the table.
Expected: :all has 419 runs, because Table 6 lists 27 settings twice. Eq. 11 has its lowest loss near G = 7 and
          S = 0.31 (Section 5). :tiny has losses below the unigram entropy, a fit of two laws, and intervals too wide
          to determine G or S. :cosine measures the difference between the schedules. A fit may mix them only if this
          difference is below 0.0059 nats, the error of Eq. 11 (Figure 12). In :tiny-cosine, cosine runs end 0.05 to
          0.20 nats above their twins, at the twins' rate (2026-11-28, 155 s of processor time).

Schedules (inferred). Table 1 says "cosine, decay rate 10 %, min lr 0"; Section 3 and the shared trunks imply warm-up,
stable and decay. All groups combine both as a stable rate and a cosine over the last 10 %. In :cosine every model has a
twin, NAME-cosine, whose cosine begins after the warm-up. It trains each D separately after the warm-up, because the
schedules share nothing more. The paper does not state which models it trained under a cosine; here they are those of
Table 1, at Table 6's usual D.

Also inferred: an initial standard deviation of 0.006, as in Tian et al. and DeepSeek; the default weight of the balance
loss, which Section 3 mentions without a value; and bfloat16 compute with float32 masters, which the hours assume.

In all rows, the combine weight of an expert is its probability, so that a group varies only one factor. Section 3
describes the choice of experts but no weights; the paper names Megatron-LM and TorchTitan. TorchTitan does not
normalize the weights by default (route_norm=False). Megatron-LM refuses to normalize the weight of a single routed
expert, which 24 of the 446 rows have: it would be constant, and the router would get no gradient.

Shapes. A layer of Table 1's models has 33 expert widths, 32 routed and one shared, of which five serve a token. Experts
become finer or coarser (G), their number changes (N), or they become wider and fewer by Eq. 35 (N_a). In all cases
n_e = total·G/active - S·G and d_expert = active·width/G, with both widths in units of Table 1's experts. The study's
notes flag these deviations:

- shapes that the paper does not print (N = 1209M and 7255M, and four small ones, derived from the printed N and N_a);
- G = 2.5 with half a shared expert, kept as one of half the width;
- S = 0.8, beyond the stated 0.7; S = 0.33 is a third;
- d_expert rounded to integers;
- row 419, which repeats row 413 although the table's pattern has D = 20B, which is trained instead.

Validation rows 443 to 445 repeat fitted rows and are not trained again.
"""

from ml_collections import ConfigDict

from moejax.papers.zhao.shapes import INFERRED, SHAPES, shape, widths
from moejax.papers.zhao.table_6 import table_6

BATCH = 2**21
"""Tokens per batch; Table 1 says 2M, which is 1024 sequences of 2048."""

GROUPS = {
    "all": range(446),
    "G": range(45),
    "N": range(45, 81),
    "S": range(81, 204),
    "N_a": range(204, 268),
    "small-G": range(268, 358),
    "validation": range(358, 446),
}
"""Ranges of rows of Table 6."""

OTHERS = ("table-1", "cosine", "tiny", "tiny-cosine")
"""Parts that are not row groups of Table 6."""

STATED = {"all": 446, "small-G": 90, "validation": 88}


def get_config(group: str = "all") -> ConfigDict:
    """Return the study of one group of experiments."""
    config = ConfigDict()
    config.name = f"zhao-{group}"
    config.seed = 0
    if group == "tiny":
        return tiny(config)
    if group == "tiny-cosine":
        return tiny_cosine(config)
    if group in ("table-1", "cosine"):
        config.models = {f"N{name.replace('.', '_')}": model(shape(name), 33, 5, 5, 1) for name in SHAPES}
        tokens = {name: [10e9, 20e9, 50e9] for name in config.models}
        notes = {}
    else:
        models, tokens, notes = table(group)
        config.models = models
    config.recipe = recipe(sorted({budget for budgets in tokens.values() for budget in budgets}))
    config.recipes = {name: dict(budgets_tokens=sorted(budgets)) for name, budgets in tokens.items()}
    config.notes = notes
    if group in STATED:
        source = "Appendix C.1 and Table 6, which lists some settings twice"
        config.stated = [dict(quantity="runs", value=STATED[group], source=source)]
    config.analysis = dict(laws=["chinchilla", "effective_params", "five_factor"], decision_flops=1e22)
    return with_cosine(config) if group == "cosine" else config


def with_cosine(config: ConfigDict) -> ConfigDict:
    """Add every model with a cosine over the whole run; no law is fitted to both schedules at once."""
    plain = config.to_dict()
    models, shared = plain["models"], plain.get("recipes", {})
    config.models = models | {f"{name}-cosine": shape for name, shape in models.items()}
    whole = dict(optimizer=dict(decay_share=1.0))
    config.recipes = shared | {f"{name}-cosine": shared.get(name, {}) | whole for name in models}
    config.analysis = dict(laws=[])
    return config


def table(group: str) -> tuple[dict, dict, dict]:
    """Return models, token budgets and notes for the rows of a group."""
    if group not in GROUPS:
        raise ValueError(f"there is no group {group!r}; there are {', '.join([*GROUPS, *OTHERS])}")
    rows = [row for row in table_6() if row.index in GROUPS[group]]
    models, tokens, notes = {}, {}, {}
    for row in rows:
        name = name_of(row)
        models[name] = model_of(row)
        # Rows 409 to 426 cross three D with six G, but 419 prints row 413's D.
        budget = 20e9 if row.index == 419 else row.tokens
        tokens[name] = sorted({*tokens.get(name, []), budget})
        notes.setdefault(name, {}).update(dict.fromkeys(flags(row)))
    return models, tokens, {name: "; ".join(found) for name, found in notes.items() if found}


def millions(row) -> tuple[int, int]:
    """Return N and N_a as Table 6 prints them."""
    return round(row.total / 1e6), round(row.active / 1e6)


def name_of(row) -> str:
    """Return a model's name from the paper's five factors without D, without dots."""
    total, active = millions(row)
    return f"N{total}M-Na{active}M-G{row.experts:g}-S{100 * row.shared:.0f}".replace(".", "_")


def model_of(row) -> dict:
    """Return the architecture of a row of Table 6."""
    name, everything, active = widths(*millions(row))
    shared = row.experts / 3 if row.shared == 0.33 else row.experts * row.shared
    return model(shape(name), everything, active, row.experts, shared)


def model(
    dimensions,
    everything: float,
    active: float,
    experts: float,
    shared: float,
    vocabulary: int = 50_000,
    head_dim: int = 64,
) -> dict:
    """Return G = ``experts`` active experts, S·G = ``shared`` of them shared, at given total and active widths."""
    layers, heads, hidden, expert = dimensions
    width = round(active * expert / experts)
    whole = shared == int(round(shared, 6))
    mixture = dict(
        num_experts=round(everything * experts / active - shared),
        top_k=round(experts - shared),
        expert_hidden=width,
        num_shared_experts=round(shared) if whole else 1,
        shared_hidden=0 if whole else round(shared * active * expert / experts),
    )
    attention = dict(num_heads=heads, num_kv_heads=heads, head_dim=head_dim)
    weights = dict(norm_topk_prob=False)
    return dict(vocab_size=vocabulary, model_dim=hidden, num_layers=layers) | attention | mixture | weights


def flags(row):
    """Yield notes on a row of Table 6."""
    name, _, active = widths(*millions(row))
    if name in INFERRED:
        yield "layers and widths are not printed; these give the printed N and N_a"
    if row.experts % 1:
        yield "G = 2.5 and S = 0.2 are two routed experts and half a shared one, built as one of half the width"
    if row.shared > 0.7:
        yield "S = 0.8 is above the stated range to 0.7"
    if (active * shape(name)[3] / row.experts) % 1:
        yield "d_expert is rounded to a whole number"
    if row.index == 419:
        yield "row 419 prints the D of row 413; its 20B is trained"


def recipe(budgets: list[float], **changes) -> dict:
    """Return Table 1's hyperparameters with Section 3's schedule."""
    return (
        dict(
            budgets_tokens=[int(budget) for budget in budgets],
            batch_tokens=BATCH,
            data=dict(source="", sequence_length=2048, validation_tokens=2**23),
            optimizer=dict(
                learning_rate=3e-4,
                warmup_tokens=500 * BATCH,
                decay_share=0.1,
                decay_shape="cosine",
                final_share=0.0,
                beta1=0.9,
                beta2=0.95,
                epsilon=1e-8,
                weight_decay=0.1,
                clip_norm=1.0,
            ),
            # Neither is printed. The deviation is DeepSeek's and Tian et al.'s; the balance weight is the default.
            initialisation=dict(std=0.006),
            runtime=dict(compute_dtype="bfloat16"),
            checkpoint_tokens=500 * BATCH,
        )
        | changes
    )


def tiny_cosine(config: ConfigDict) -> ConfigDict:
    """Return three sizes of ``tiny`` under both schedules."""
    config = tiny(config)
    models = config.to_dict()["models"]
    config.models = {name: shape for name, shape in models.items() if "all9-active5-G5-S20" in name}
    return with_cosine(config)


def tiny(config: ConfigDict) -> ConfigDict:
    """Return small versions of the groups G, S, N_a and N, minutes on two cores."""
    small = {size: (2, size // 16, size, size // 2) for size in (32, 64, 96)}
    cells = [(32, 9, 5, 5, 1), (64, 9, 5, 5, 1), (96, 9, 5, 5, 1)]
    cells += [(64, 9, 5, 10, 2), (64, 9, 5, 5, 0), (64, 9, 5, 5, 2), (64, 17, 5, 5, 1), (64, 9, 2.5, 5, 1)]
    config.models = {
        f"d{size}-all{total}-active{active:g}-G{experts}-S{100 * shared // experts}".replace(".", "_"): model(
            small[size], total, active, experts, shared, vocabulary=257, head_dim=16
        )
        for size, total, active, experts, shared in cells
    }
    small_recipe = recipe(
        [131_072, 262_144, 524_288],
        batch_tokens=4_096,
        data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
        initialisation=dict(std=0.0),
        runtime=dict(),
        checkpoint_tokens=131_072,
    )
    small_recipe["optimizer"] |= dict(learning_rate=6e-3, warmup_tokens=32_768)
    config.recipe = small_recipe
    config.analysis = dict(laws=["chinchilla", "effective_params"], resamples=40, decision_flops=1e13)
    return config
