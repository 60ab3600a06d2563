"""The shape of a whole architecture as what is chosen; what a law leaves open stays as in a model that is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moejax.architecture import Architecture
from moejax.design.coordinates import TOKENS, UNIQUE_TOKENS, Candidate, Coordinate, trained_on
from moejax.laws.accounting import design_of

MODEL_DIM = Coordinate(name="model_dim", meaning="width of the residual stream", low=16.0, high=1e6, starts=(1e3, 1e4))
NUM_LAYERS = Coordinate(name="num_layers", meaning="layers", low=1.0, high=1e4, least=True, starts=(16.0, 100.0))
NUM_EXPERTS = Coordinate(
    name="num_experts", meaning="routed experts of a layer", low=1.0, high=1e5, least=True, starts=(32.0, 256.0)
)
TOP_K = Coordinate(
    name="top_k", meaning="routed experts that serve a token", low=1.0, high=1e4, least=True, starts=(2.0, 12.0)
)
EXPERT_HIDDEN = Coordinate(name="expert_hidden", meaning="width of an expert", low=1.0, high=1e6, starts=(5e2, 4e3))
NUM_SHARED = Coordinate(
    name="num_shared_experts",
    meaning="experts that serve every token",
    low=0.0,
    high=1e3,
    least=True,
    starts=(0.5, 2.0),
    linear=True,
)


@dataclass(frozen=True)
class Shapes:
    """Architectures like ``like``, of another size, counted exactly; and tokens.

    The model's width is chosen, and of the rest what the law reads: its ``inputs`` say so. What a law is silent about
    must not be left to what happens to cost least (one layer of endless width), and keeps its ratio to the width:
    depth, heads, the feed-forward; or its number: experts that serve a token. Vocabulary and kind of attention stay.
    """

    like: Architecture
    inputs: tuple[str, ...]
    sequence_length: int = 4096
    """For the training FLOPs that a law reads."""

    @property
    def assumes(self) -> str:
        """Nothing: parameters of shapes are counted."""
        return ""

    @property
    def at_least(self) -> Mapping[str, float]:
        """A token is served by no more experts than there are."""
        return {"expert_expansion": 1.0} if self.like.is_moe else {}

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """What is chosen of a mixture or of a dense model, as ``like`` is one."""
        reads, mixture = set(self.inputs), self.like.is_moe
        counted = mixture and {"top_k", "num_shared_experts"} <= reads and "num_experts" not in reads
        chosen = {
            MODEL_DIM: True,
            NUM_LAYERS: "num_layers" in reads,
            NUM_EXPERTS: mixture and bool({"params_total", "num_experts"} & reads),
            TOP_K: counted,
            EXPERT_HIDDEN: mixture and {"model_dim", "expert_hidden"} <= reads,
            NUM_SHARED: counted,
            TOKENS: True,
            UNIQUE_TOKENS: "unique_tokens" in reads,
        }
        return tuple(coordinate for coordinate, is_chosen in chosen.items() if is_chosen)

    def candidate(self, values: Mapping[str, Any]) -> Candidate:
        """The architecture, whole numbers or not, with its design."""
        names = {c.name for c in self.coordinates} - {"tokens", "unique_tokens"}
        wider = values["model_dim"] / self.like.model_dim
        architecture = self.like.replace(**{name: getattr(self.like, name) * wider for name in SCALED}).replace(
            **{name: values[name] for name in names}
        )
        design = design_of(architecture, values["tokens"], self.sequence_length)
        return trained_on(design, values.get("unique_tokens"), architecture)


SCALED = ("num_layers", "num_heads", "num_kv_heads", "expert_hidden", "shared_hidden", "dense_hidden")
"""What grows with the model's width where it is not chosen."""
