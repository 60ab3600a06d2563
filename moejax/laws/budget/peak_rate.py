"""Choose a peak learning rate for a model and its tokens, and report the range of the published laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moejax.architecture import Architecture
from moejax.laws.accounting import design_of
from moejax.laws.budget import hyperparameters, step_law
from moejax.laws.conventions import FLOPS
from moejax.laws.design import Design, value_of
from moejax.laws.law import Published

LAWS: Mapping[str, Published] = {**hyperparameters.PUBLISHED, **step_law.PUBLISHED}
"""Published laws of learning rate and batch size; the first is the default."""
APART = 1.5
"""Ratio of the largest to the smallest published rate above which a sweep is recommended."""


@dataclass(frozen=True, kw_only=True)
class PeakRate:
    """A peak learning rate with its origin, and the rates of the published laws."""

    value: float
    by: str
    """Name of the law, or of the fit, that gives ``value``."""
    source: str
    laws: Mapping[str, float]
    """Rates by published law, for laws whose inputs the design has."""
    beyond: tuple[str, ...]
    """Sentences on inputs outside the range to which the law was fitted."""

    @property
    def spread(self) -> str:
        """Sentence with the range of the published laws."""
        low, high = min(self.laws.values()), max(self.laws.values())
        each = ", ".join(f"{name} {rate:.3g}" for name, rate in self.laws.items())
        advice = f"; they differ by a factor of {high / low:.2g}, so sweep this range" if high > APART * low else ""
        return f"Published laws give {low:.3g} to {high:.3g} ({each}){advice}."

    @property
    def sentence(self) -> str:
        """Rate, origin, range of the published laws, and extrapolation."""
        return " ".join(
            [f"Peak learning rate {self.value:.3g} by {self.by} ({self.source}).", self.spread, *self.beyond]
        )

    def to_json(self) -> dict[str, object]:
        """Return plain data for JSON, keyed by name."""
        return {"value": self.value, "by": self.by, "laws": dict(self.laws), "beyond": list(self.beyond)}


def counted(architecture: Architecture, tokens: float, sequence_length: int) -> Design:
    """Return the design of a training run; its FLOPs exclude the vocabulary, as in learning-rate laws (Tian et al.
    2025, App. I)."""
    flops = FLOPS["tian"].per_token(architecture, sequence_length) * tokens
    design = design_of(architecture, float(tokens), sequence_length)
    return Design(
        params_total=design.params_total, params_embedding=design.params_embedding, tokens=tokens, flops=float(flops)
    )


def peak_rate(design: Design, by: str = "", own: float | None = None) -> PeakRate | None:
    """Return the peak learning rate for a design; None if no law has its inputs.

    Args:
      by: a key of ``LAWS``, by default the first law whose inputs the design has; with ``own``, the fit's name.
      own: the rate predicted by the user's fit, used instead of a published law's.
    """
    asked = {name: one for name, one in LAWS.items() if all(value_of(design, n) is not None for n in one.law.inputs)}
    rates = {name: float(one.law(design)["learning_rate"]) for name, one in asked.items()}
    if not rates:
        return None
    if own is not None:
        return PeakRate(value=own, by=by, source="your fit", laws=rates, beyond=())
    by = by or next(iter(rates))
    value = float(f"{rates[by]:.3g}")
    return PeakRate(value=value, by=by, source=asked[by].source, laws=rates, beyond=tuple(_beyond(asked[by], design)))


def _beyond(known: Published, design: Design) -> Iterator[str]:
    for name, (low, high) in known.fitted.items():
        if not low <= value_of(design, name) <= high:
            what = "FLOPs" if name == "flops" else name
            yield f"The law was fitted from {low:.0e} to {high:.0e} {what}, so this is an extrapolation."
