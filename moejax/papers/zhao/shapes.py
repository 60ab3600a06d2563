"""Define the model shapes of Zhao et al. (2025), Tables 1 and 6, as printed or inferred from sizes.

A layer of Table 1's models has 33 experts, 32 routed and one shared, of which five are active. Table 6 splits, widens
and multiplies them. So a row has a shape and two widths: the total width of a layer's experts and the width of its
active experts, both in units of the shape's expert.
"""

from __future__ import annotations

from moejax.architecture import Architecture
from moejax.laws.conventions import PARAMS
from moejax.ranges import Number

SHAPES = {
    "247M": (12, 8, 512, 384, "247", "48"),
    "496M": (12, 12, 768, 512, "496", "99"),
    "907M": (12, 16, 1024, 704, "907", "181"),
    "2.40B": (20, 20, 1280, 896, "2.40", "476"),
    "3.96B": (24, 24, 1536, 1024, "3.96", "793"),
}
"""Shapes of Table 1: layers, heads of width 64, hidden size, expert size, N as printed, N_a in millions.

All have 32 experts, 4 + 1 active.
"""

INFERRED = {
    "1209M": (16, 16, 1024, 704),
    "7255M": (24, 32, 2048, 1408),
    "121M": (12, 6, 384, 256),
    "30M": (12, 7, 448, 320),
}
"""Layers, heads, hidden size and expert size, which are not printed but inferred from N and N_a of Table 6."""

TOTALS = {
    133: ("247M", 17), 247: ("247M", 33), 473: ("247M", 65), 926: ("247M", 129), 239: ("247M", 32),
    269: ("496M", 17), 496: ("496M", 33), 949: ("496M", 65), 1855: ("496M", 129),
    492: ("907M", 17), 907: ("907M", 33), 1738: ("907M", 65), 3399: ("907M", 129),
    1301: ("2.40B", 17), 2404: ("2.40B", 33), 4604: ("2.40B", 65), 9008: ("2.40B", 129),
    3964: ("3.96B", 33), 1209: ("1209M", 33), 7255: ("7255M", 33),
    121: ("121M", 32), 93: ("30M", 16), 175: ("30M", 32), 340: ("30M", 64),
}  # fmt: skip
"""Shape and total width of a layer's experts, in units of the shape's expert, keyed by N in millions."""

WIDENINGS = {
    (247, 31): 0.5, (496, 64): 0.5, (496, 170): 2, (496, 312): 4, (496, 453): 6,
    (907, 116): 0.5, (907, 310): 2, (907, 570): 4, (907, 829): 6,
    (2404, 304): 0.5, (2404, 820): 2, (2404, 1508): 4, (2404, 2196): 6,
    (7255, 1960): 1.5, (7255, 2479): 2, (7255, 3517): 3, (7255, 6632): 6,
    (3964, 453): 2 / 5, (3964, 566): 3 / 5,
}  # fmt: skip
"""Values of Appendix H's u, active width / width of Table 1's five active experts, keyed by N and N_a in millions."""

WITHOUT_SHARED = (22, 30, 41)
"""N_a in millions of the small experiments on G, whose active width is four experts and which have no shared expert."""


def shape(name: str) -> tuple[int, ...]:
    """Return layers, heads, hidden size and expert size."""
    return (SHAPES[name] if name in SHAPES else INFERRED[name])[:4]


def widths(total: int, active: int) -> tuple[str, Number, Number]:
    """Return the shape's name, total expert width and active expert width of a row with N and N_a in millions."""
    name, everything = TOTALS[total]
    base = 4 if active in WITHOUT_SHARED else 5
    return name, everything, base * WIDENINGS.get((total, active), 1)


def model(
    name: str, *, experts: Number = 32, top_k: Number = 4, shared: Number = 1, expert_hidden: Number = 0
) -> Architecture:
    """Return a model with this shape, by default with Table 1's experts. Eqs. 2 and 3 do not depend on its
    vocabulary."""
    layers, heads, hidden, expert = shape(name)
    return Architecture(
        vocab_size=1,
        model_dim=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=64,
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=shared,
        expert_hidden=expert_hidden or expert,
    )


def millions(architecture: Architecture) -> tuple[Number, Number]:
    """Return N and N_a by Eqs. 2 and 3, in millions."""
    return PARAMS["zhao"].total(architecture) / 1e6, PARAMS["zhao"].active(architecture) / 1e6


def sizes(total: int, active: int) -> tuple[Number, Number]:
    """Return N and N_a in millions by Eqs. 2 and 3, for a row with the printed values ``total`` and ``active``."""
    name, everything, serving = widths(total, active)
    # Eqs. 2 and 3 depend only on the experts' total width, not on their number.
    return millions(model(name, experts=everything, top_k=serving, shared=0))
