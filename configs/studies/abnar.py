"""The sparsity and IsoFLOP grid of Abnar et al. (2025), "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity".

Purpose:  fit IsoFLOP surfaces over size and sparsity, test the law of Eq. 6 at held-out sparsity, and relate downstream
          errors to the loss at different sparsities.
Paper:    Sections 2 and 4, Appendix B (Table 1), Appendix C (FLOPs), Appendices D.1 (budgets) and D.3 (tasks).
Command:  moejax study --config=configs/studies/abnar.py --config.recipe.data.source=PATH
          The argument selects a part; times are at 40 % MFU. :downstream and :tiny-downstream need
          pip install 'moejax[eval]'.

| part             | trains                                                      | runs  | FLOPs  | H100 hours |
|------------------|-------------------------------------------------------------|-------|--------|------------|
| :grid (default)  | all sizes, sparsities and budgets                           | 157   | 5.0e22 | 33,100     |
| :search          | Table 1's search space, one size and budget, all sparsities | 225   | 2.2e22 | 14,500     |
| :tuned           | :search, then :grid with the best settings per sparsity     | 382   | 7.3e22 | 47,600     |
| :sweep           | Table 1's search space in every cell of the grid            | 5,031 | 1.6e24 | 1,060,000  |
| :downstream      | :grid, with D.3's tasks for every checkpoint                | 157   | 5.0e22 | 33,100     |
| :tiny            | a small grid, minutes on two cores                          | 18    | 3.6e12 |            |
| :tiny-search     | a small search, minutes on two cores                        | 10    | 4.9e11 |            |
| :tiny-tuned      | a small search and grid, minutes on two cores               | 22    | 1.4e12 |            |
| :tiny-downstream | :tiny, with a task on the study's own text                  | 18    | 3.6e12 |            |

Data:     your own, tokenized with GPT-NeoX's tokenizer (50,432 entries); the paper uses a part of RedPajama v1.
Recipe:   No tokens are dropped. Batches have 1024 sequences of 2048 tokens. Models use QK-norm, a router z-loss of
          0.001 and no jitter. The rate warms up to 0.002 and then follows a cosine. Every cell has its own run, without
          a shared trunk. Adam's weight decay of 1e-5 does not scale with the rate, so it is 1e-5/rate here.
Cost:     see the table.
Expected: at each budget, loss falls with sparsity while the best N rises and the best N_a falls (Figures 2 and 3). A
          task's error follows the loss at every sparsity, except in reading comprehension, where sparser models have
          higher errors (Figures 5 and 10). :tiny has losses below the unigram entropy and a fit of two laws,
          :tiny-tuned finds best settings for every sparsity, and the error of :tiny-downstream falls with the loss.

Appendix C specifies sequences of 2048 tokens, experts of width 4·d_model/granularity, and heads that fill d_model. The
paper does not print widths, layers, expert counts, or the final rate. Inferred:

- Width 64 times the layers, heads of 64, the fewest experts that make the sparsity exact, and a decay to 0.
- Tokens are the budget divided by Appendix C's FLOPs per token, and sizes have between 2 and 500 tokens per active
  parameter.
- A cell without its own search has the middle rate and warm-up, the smaller balance weight, and G = 1.
- The search is at width 1024 and 1e20 FLOPs, both in the middle of the grid: the paper states that optima differ
  between configurations, but not which ones were swept. In :tuned the best settings of a sparsity apply to every size
  and budget.
- Compute is in bfloat16, which the hours assume.
- In :search, :tuned and :sweep the number of active experts doubles with G, like the number of all experts, so that S
  and N_a stay constant. Appendix C treats the number of active experts as "an independent variable that does not scale
  with granularity", has E·G experts in all, and prints neither number. With as many active experts as at G = 1, N_a
  would be half.

The combine weight of an expert is its probability, even if a token has several experts. Appendix A.2 describes the
choice of experts but no weights, and Appendix B names MegaBlocks. Its router applies softmax to all experts and by
default does not normalize the weights of the chosen ones (moe_normalize_expert_weights is None). With normalization,
the weight of a single expert is constant and the router gets no gradient: 115 of the 134 sparse models of :grid have
one active expert.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.laws.accounting import params
from moejax.laws.conventions import FLOPS

Shape = dict[str, Any]
"""Settings of an architecture."""
Cell = tuple[str, Shape, dict[str, Any]]
"""Name, shape and recipe changes of a training run."""

SPARSITIES = {0: (1, 1), 25: (4, 3), 50: (2, 1), 75: (4, 1), 90: (10, 1), 95: (20, 1), 98: (50, 1)}
"""Total and active experts by sparsity in percent (Table 1), at a granularity of 1; 0 is a dense model."""
BUDGETS = (3e19, 6e19, 1e20, 3e20, 1e21)
"""Training FLOPs (Appendix D.1)."""
WIDTHS = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072)
GRANULARITIES, RATES, BALANCES, WARMUPS = (1, 2), (0.003, 0.002, 0.001), (0.02, 0.05), (0.02, 0.05, 0.1)
"""Search space of Table 1."""
SEQUENCE, BATCH = 2048, 1024 * 2048
TOKENS_PER_PARAM = (2, 500)


class Tuned(NamedTuple):
    """Settings that Table 1 tunes in addition to the sparsity."""

    granularity: int = 1
    rate: float = 0.002
    balance: float = 0.02
    warmup: float = 0.05
    """Share of the training tokens."""

    @property
    def name(self) -> str:
        """Return the settings as part of a model's name."""
        rate, balance, warm = 1000 * self.rate, 100 * self.balance, 100 * self.warmup
        return f"G{self.granularity}-rate{rate:g}-balance{balance:g}-warm{warm:g}".replace(".", "_")


USUAL = Tuned()
SPACE = [Tuned(*one) for one in itertools.product(GRANULARITIES, RATES, BALANCES, WARMUPS)]
TINY_SPACE = [Tuned(granularity, rate) for granularity in GRANULARITIES for rate in (0.003, 0.006)]


def get_config(part: str = "grid") -> ConfigDict:
    """Return the study of one part."""
    config = ConfigDict()
    config.name = f"abnar-{part}"
    config.seed = 0
    if part not in PARTS:
        raise ValueError(f"there is no {part!r}; there are {', '.join(PARTS)}")
    cells = list(PARTS[part]())
    tiny = part.startswith("tiny")
    config.models = {name: model for name, model, _ in cells}
    config.recipes = {name: exceptions for name, _, exceptions in cells}
    config.recipe = recipe() | (SMALL if tiny else {})
    laws = ["effective_params", "chinchilla"] if tiny else ["sparsity", "effective_params"]
    # A search has one size and one budget, too few to fit a law; a tiny grid after it has too few sizes.
    laws = [] if part in ("search", "tiny-search", "tiny-tuned") else laws
    # Appendix F fits without the sparsest models and predicts them.
    asked = dict(hold_out="sparsity", decision_flops=1e13 if tiny else 1e21, resamples=40 if tiny else 300)
    # Each cell of the sweep is represented by its best run (Appendix B).
    asked |= dict(best_by=["learning_rate", "warmup_tokens", "weight_decay"]) if part == "sweep" else {}
    config.analysis = dict(laws=laws) | asked
    if part == "grid":
        config.stated = [
            dict(quantity="flops", value=budgets_together(cells), source="the budgets, Appendix C's FLOPs")
        ]
    if part.endswith("tuned"):
        first = f"{'S90' if tiny else 'S98'}-{Tuned(rate=0.006).name if tiny else USUAL.name}"
        then = functools.partial(tuned, cells=tiny_grid if tiny else grid, space=TINY_SPACE if tiny else SPACE)
        config.stages = [dict(name="search", expected=first), dict(name="grid", make=then)]
    if part.endswith("downstream"):
        # Every task of D.3; tiny parts use the study's own text, which needs no network.
        config.downstream = dict(tasks=["validation_choices"]) if tiny else dict(suite="abnar-2025")
    return config


def model(sparsity: int, width: int, granularity: int = 1, vocabulary: int = 50_432, head_dim: int = 64) -> Shape:
    """Return the shape of a model by its width and its sparsity in percent."""
    heads = width // head_dim
    shape = dict(vocab_size=vocabulary, model_dim=width, num_layers=heads, num_heads=heads, num_kv_heads=heads)
    shape |= dict(head_dim=head_dim, qk_norm=True, tied_embeddings=False)
    total, active = (granularity * count for count in SPARSITIES[sparsity])
    if not sparsity:
        return shape | dict(dense_hidden=4 * width)
    mixture = dict(num_experts=total, top_k=active, expert_hidden=4 * width // granularity)
    return shape | mixture | dict(norm_topk_prob=False)


def cell(name: str, shape: Shape, flops: float, chosen: Tuned = USUAL, sequence: int = SEQUENCE) -> Cell:
    """Return the run of a shape with a budget."""
    tokens = int(flops / FLOPS["abnar"].per_token(Architecture(**shape), sequence))
    rate = chosen.rate
    optimizer = dict(learning_rate=rate, warmup_tokens=int(chosen.warmup * tokens), weight_decay=1e-5 / rate)
    exceptions: Shape = dict(budgets_tokens=[tokens], optimizer=optimizer, loss=dict(balance=chosen.balance))
    return name, shape, exceptions


def grid(chosen: Mapping[int, Sequence[Tuned]] | None = None) -> Iterator[Cell]:
    """Yield every width suitable for a budget at every sparsity, with the settings chosen for the sparsity."""
    for flops, sparsity, width in itertools.product(BUDGETS, SPARSITIES, WIDTHS):
        own = (chosen or {}).get(sparsity, [USUAL])
        for one in own:
            name = f"C{flops:.0e}-S{sparsity}-d{width}".replace("+", "")
            name += f"-{one.name}" if len(own) > 1 else ""
            found = cell(name, model(sparsity, width, one.granularity), flops, one)
            per_param = found[2]["budgets_tokens"][0] / params(Architecture(**found[1])).active
            if TOKENS_PER_PARAM[0] <= per_param <= TOKENS_PER_PARAM[1]:
                yield found


def space_of(sparsity: int, space: Sequence[Tuned] = SPACE) -> list[Tuned]:
    """Return the search space at a sparsity; granularity and balance weight do not apply to a dense model."""
    return [one for one in space if sparsity or (one.granularity == 1 and one.balance == BALANCES[0])]


def search() -> Iterator[Cell]:
    """Yield Table 1's search at 1e20 FLOPs and a width of 1024."""
    for sparsity in SPARSITIES:
        for one in space_of(sparsity):
            yield cell(f"S{sparsity}-{one.name}", model(sparsity, 1024, one.granularity), 1e20, one)


def sweep() -> Iterator[Cell]:
    """Yield Table 1's search in every cell of the grid (Appendix B)."""
    yield from grid({sparsity: space_of(sparsity) for sparsity in SPARSITIES})


def tuned(before: Any, cells: Callable[..., Iterator[Cell]], space: Sequence[Tuned]) -> dict[str, Any]:
    """Return the grid with the settings of minimum loss in the search for each sparsity; ties give the usual
    settings.
    """
    by_name = {one.name: one for one in space}
    losses = {name.partition("-")[::2]: loss for name, loss in before.losses.items()}
    chosen: dict[int, list[Tuned]] = {}
    for sparsity in dict.fromkeys(sparsity for sparsity, _ in losses):
        own = [(loss, by_name[rest]) for (s, rest), loss in losses.items() if s == sparsity]
        chosen[int(sparsity[1:])] = [
            min(own, key=lambda pair: (pair[0], pair[1] != Tuned(rate=pair[1].rate), pair[1]))[1]
        ]
    made = list(cells(chosen))
    said = {name: chosen[int(name.split("-")[1][1:])][0].name for name, *_ in made}
    return dict(
        models={name: shape for name, shape, _ in made},
        recipes={name: exceptions for name, _, exceptions in made},
        notes={name: f"with {one}, which won the search at its sparsity" for name, one in said.items()},
    )


def tiny() -> Iterator[Cell]:
    """Yield two budgets, three widths and three sparsities."""
    yield from tiny_grid(budgets=(1e11, 3e11), widths=(32, 48, 64))


def tiny_grid(
    chosen: Mapping[int, Sequence[Tuned]] | None = None,
    budgets: Sequence[float] = (5e10, 1e11),
    widths: Sequence[int] = (32, 48),
) -> Iterator[Cell]:
    """Yield a small grid."""
    for flops, sparsity, width in itertools.product(budgets, (0, 50, 90), widths):
        one = (chosen or {}).get(sparsity, [Tuned(rate=0.006)])[0]
        shape = model(sparsity, width, one.granularity, vocabulary=257, head_dim=16)
        yield cell(f"C{flops:.0e}-S{sparsity}-d{width}".replace("+", ""), shape, flops, one, sequence=128)


def tiny_search() -> Iterator[Cell]:
    """Yield a small search: two granularities and two rates for each of three sparsities."""
    for sparsity in (0, 50, 90):
        for one in space_of(sparsity, TINY_SPACE):
            shape = model(sparsity, 32, one.granularity, vocabulary=257, head_dim=16)
            yield cell(f"S{sparsity}-{one.name}", shape, 5e10, one, sequence=128)


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "grid": grid,
    "search": search,
    "tuned": search,
    "sweep": sweep,
    "downstream": grid,
    "tiny": tiny,
    "tiny-search": tiny_search,
    "tiny-tuned": tiny_search,
    "tiny-downstream": tiny,
}


def budgets_together(cells) -> float:
    """Return the total FLOPs of the budgets."""
    return sum(float(name.removeprefix("C").split("-")[0]) for name, *_ in cells)


SMALL: dict[str, Any] = dict(
    batch_tokens=2_048,
    runtime=dict(),
    data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
)


def recipe(**changes: Any) -> dict[str, Any]:
    """Return the recipe of Appendix B."""
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=BATCH,
            data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**23),
            optimizer=dict(decay_share=1.0, decay_shape="cosine", final_share=0.0, beta1=0.9, beta2=0.95, epsilon=1e-8),
            loss=dict(balance=0.02, router_z=0.001),
            runtime=dict(compute_dtype="bfloat16"),
            checkpoint_tokens=0,
        )
        | changes
    )
