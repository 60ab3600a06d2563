"""What a study is: a family of models, one recipe, and what is asked of the runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moejax.architecture import Architecture
from moejax.config import dump, unknown
from moejax.laws import LAWS
from moejax.train.auto import choose_hyperparameters
from moejax.train.training import Recipe, Training, check_name


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is computed from a study's runs. It may change after training."""

    laws: tuple[str, ...] = ("chinchilla", "effective_params")
    """Laws to fit, by their names in ``moejax.laws.LAWS``."""
    resamples: int = 300
    """Bootstrap resamples, drawn by architecture."""
    decision_flops: float = 1e15
    """Budget at which the fitted laws are asked for the best model."""
    seed: int = 0

    def check(self) -> None:
        """Raise ``ValueError`` with value, rule and remedy if something asked for does not exist."""
        for name in self.laws:
            if name not in LAWS:
                raise ValueError(unknown(f"analysis.laws: law {name!r}", name, list(LAWS)))
        if self.resamples < 10:
            raise ValueError(f"analysis.resamples is {self.resamples}; an interval needs at least 10.")
        if not self.decision_flops > 0:
            raise ValueError(f"analysis.decision_flops is {self.decision_flops}; give a positive budget.")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A family of models trained by one recipe."""

    name: str
    models: dict[str, Architecture]
    """Architectures by name."""
    recipe: Recipe
    seed: int = 0
    analysis: Analysis = field(default_factory=Analysis)

    def trainings(self) -> list[Training]:
        """One training per model; those that take longest first, so that workers end together."""
        every = [
            Training(name=name, architecture=architecture, recipe=self.recipe, seed=self.seed)
            for name, architecture in self.models.items()
        ]
        every = [choose_hyperparameters(training).training for training in every]
        return sorted(every, key=work, reverse=True)

    def identity(self) -> dict[str, Any]:
        """What decides the runs: a folder that holds another identity belongs to another study."""
        return {"name": self.name, "seed": self.seed, "models": dump(self.models), "recipe": dump(self.recipe)}

    def check(self) -> None:
        """Raise ``ValueError``, a sentence with value, rule and remedy, if this study cannot be run."""
        check_name(self.name)
        if not self.models:
            raise ValueError("models is empty; a study needs at least one architecture.")
        if len(self.recipe.budgets_tokens) < 2:
            raise ValueError(
                "recipe.budgets_tokens has one budget; a study needs at least two, so that the largest can be held out."
            )
        self.analysis.check()
        for training in self.trainings():
            training.check()


def work(training: Training) -> float:
    """FLOPs of a training with all its branches, for scheduling and progress."""
    from moejax.laws.accounting import flops_per_token

    recipe = training.recipe
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training
    return float(per_token * recipe.total_steps * recipe.batch_tokens)
