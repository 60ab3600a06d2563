"""Loss from width, depth, parameters and tokens: the law of the Gemstones, McLeish et al. (2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from moejax.laws.design import Design, Scalar
from moejax.laws.law import LOSS, LawEntry, Published, coefficient, law


@law
class WidthDepth:
    """L(w, d, p, T) = A/w^alpha + B/d^beta + C/p^gamma + D/T^zeta + epsilon.

    McLeish et al., "Gemstones: A Model Suite for Multi-Faceted Scaling Laws" (2025), the law of width and depth.

    w is ``model_dim``, d is ``num_layers``, p is ``params_active`` (for a dense model, all parameters, embeddings
    included) and T is ``tokens``. L is in nats per token. The law compares shapes with equal numbers of parameters. To
    split a budget, it also needs the parameters as a function of width and depth; ``moejax design`` computes them.
    """

    inputs: ClassVar[tuple[str, ...]] = ("model_dim", "num_layers", "params_active", "tokens")
    outputs: ClassVar = LOSS

    width_scale: Scalar = coefficient("scale of the term of width", symbol="A", is_scale=True)
    width_exponent: Scalar = coefficient("exponent of width", symbol="alpha")
    depth_scale: Scalar = coefficient("scale of the term of depth", symbol="B", is_scale=True)
    depth_exponent: Scalar = coefficient("exponent of depth", symbol="beta")
    params_scale: Scalar = coefficient(
        "scale of the parameter term", symbol="C", dimension={"params": "params_exponent"}
    )
    params_exponent: Scalar = coefficient("exponent of parameters", symbol="gamma")
    tokens_scale: Scalar = coefficient("scale of the data term", symbol="D", dimension={"tokens": "tokens_exponent"})
    tokens_exponent: Scalar = coefficient("exponent of tokens", symbol="zeta")
    irreducible: Scalar = coefficient("irreducible loss, nats per token", symbol="epsilon")

    def __call__(self, design: Design) -> Any:
        return (
            self.width_scale * design.model_dim**-self.width_exponent
            + self.depth_scale * design.num_layers**-self.depth_exponent
            + self.params_scale * design.params_active**-self.params_exponent
            + self.tokens_scale * design.tokens**-self.tokens_exponent
            + self.irreducible
        )


def _gemstones(law: WidthDepth, rate: str, tokens: tuple[float, float], missed: str) -> Published:
    return Published(
        law=law,
        source="McLeish et al. 2025, released fit with Huber's delta 1e-3 (mcleish7/gemstone-scaling-laws)",
        provenance="verified",
        data=f"Dolma, 22 models of 50M to 2B parameters, {rate}",
        fitted={
            "model_dim": (256, 3072),
            "num_layers": (3, 80),
            "params_active": (48.4e6, 2.008e9),
            "tokens": tokens,
        },
        dense=True,
        remark=f"On the released losses, the objective equals the released value to all seven digits; {missed}",
    )


PUBLISHED = {
    "gemstones-2025-cooled": _gemstones(
        WidthDepth(
            width_scale=4.60076239,
            width_exponent=0.3540096969,
            depth_scale=0.836927865,
            depth_exponent=0.464087269,
            params_scale=562.254769,
            params_exponent=0.3941362557,
            tokens_scale=102673.834,
            tokens_exponent=0.5364845902,
            irreducible=1.7994684553,
        ),
        "learning rates cooled to 0",
        (11.0e9, 110.0e9),
        "the mean error is 0.45 %.",
    ),
    "gemstones-2025-constant": _gemstones(
        WidthDepth(
            width_scale=2.92671545,
            width_exponent=0.205280776,
            depth_scale=0.810778593,
            depth_exponent=0.4741415976,
            params_scale=501.424795,
            params_exponent=0.372096494,
            tokens_scale=54396.3218,
            tokens_exponent=0.5116481093,
            irreducible=1.4868208046,
        ),
        "learning rates constant after warmup",
        (10.0e9, 350.1e9),
        "the mean error is 0.39 %. Losses before a learning rate decays are higher than after.",
    ),
}


ENTRIES = (LawEntry(name="width_depth", law=WidthDepth, aliases=("gemstones", "mcleish"), published=PUBLISHED),)
