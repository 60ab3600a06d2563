"""Define a study: a set of models, a recipe with changes per model, and the analysis of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from moejax.architecture import Architecture
from moejax.config import Rule, build, check_fields, check_name, dump, unknown
from moejax.errors import UserError
from moejax.evaluation.suites import SUITES
from moejax.fit.sweeps.settings import SETTINGS
from moejax.laws import LAWS
from moejax.laws.accounting import flops_per_token
from moejax.laws.design import FIELDS
from moejax.ranges import INT32, NumberRange, Resamples, Scale, Seed, Tokens, one_of, whole
from moejax.study import annealed
from moejax.study.score_links import LINKS
from moejax.train.training import Recipe, Training, choose_hyperparameters, vmapped_runs
from moejax.wording import listed

HOLD_OUT = (*FIELDS, "sparsity")
"""Fields by which the largest runs can be held out."""

RECIPES = ("tian",)
"""Papers' procedures that a study can apply to its runs."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Settings of the analysis of a study's runs. They may change after training."""

    laws: tuple[Annotated[str, one_of(LAWS)], ...] = ("chinchilla", "effective_params")
    """Names of the laws to fit, from ``moejax.laws.LAWS``; empty to train without fitting."""
    resamples: Resamples = 300
    """Number of bootstrap resamples of architectures."""
    decision_flops: Annotated[float, NumberRange(1, 1e40)] = 1e15
    """Compute budget in FLOPs for which the fitted laws compute the best model."""
    best_by: tuple[Annotated[str, one_of(SETTINGS)], ...] = ()
    """Settings that the study sweeps, such as ``learning_rate``. Laws are fitted to the run with the lowest loss of
    each architecture and token budget. If empty, all runs are fitted.
    """
    hold_out: Annotated[str, one_of(HOLD_OUT)] = "tokens"
    """Held-out set for testing each law: the largest runs in this field of ``Design``, or the models in
    ``hold_out_models``. A law that the other runs do not determine is not fitted.
    """
    hold_out_models: tuple[str, ...] = ()
    anneal: Annotated[str, one_of(("", annealed.PREDICT))] = ""
    """``predict``: write a table with predicted losses at untrained budgets, as if a branch of the model's trunk had
    been annealed to each (``moejax.study.annealed``). If empty, nothing is predicted.
    """
    anneal_tokens: tuple[Tokens, ...] = ()
    """Budgets for ``anneal``, in ascending order."""
    anneal_law: str = "momentum"
    """Loss-curve law that is fitted to each model's trunk and branches."""
    recipe: Annotated[str, one_of(("", *RECIPES))] = ""
    """A paper's procedure to apply to the runs after the laws, one of ``RECIPES``; none if empty."""
    recipe_models: tuple[str, ...] = ()
    """Models whose runs the procedure uses; all if empty. The procedure's figures show all models."""
    seed: Annotated[int, whole(0, INT32)] = 0

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda analysis: len(set(analysis.laws)) == len(analysis.laws),
            "analysis.laws names a law twice: {self.laws}; name every law once.",
        ),
    )


OWN_DATA = ("unique_tokens", "decay_mixture")
"""Data settings that may differ between models of a study, since they do not change the held-out text."""

TOTALS = (
    *("models", "runs", "tokens", "tokens_without_shared_trunks", "flops", "flops_without_shared_trunks"),
    *("chip_hours", "cost"),
)
"""Totals of a study that are known before training; see ``moejax.study.estimate``."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A total that a paper states for its experiments, for comparison with the study's estimate."""

    quantity: Annotated[str, one_of(TOTALS)]
    value: Annotated[float, NumberRange(0, 1e60)]
    source: str


@dataclass(frozen=True, kw_only=True)
class Downstream:
    """Downstream evaluation of a study's checkpoints, one per model and budget. It may change after training."""

    suite: Annotated[str, one_of(("", *SUITES))] = ""
    """Name of a list of tasks; none if empty."""
    tasks: tuple[str, ...] = ()
    """Additional tasks or groups of lm-evaluation-harness, or ``validation_choices``, a task on the study's own
    text.
    """
    num_fewshot: Annotated[int, whole(-1, 1_000)] = -1
    """Number of few-shot examples in ``tasks``; -1 for each task's default."""
    task_path: str = ""
    """Folder with custom task files, which take precedence over the harness's."""
    limit: Annotated[int, whole(0, INT32)] = 0
    """Number of documents to use from the start of each task; 0 for all."""
    max_new_tokens: Annotated[int, whole(0, INT32)] = 0
    """Maximum number of generated tokens. A lower limit of the task also applies; 0 uses only the task's limit."""
    batch_tokens: Annotated[int, whole(1, INT32)] = 8_192
    """Tokens per forward pass."""
    dtype: Annotated[str, one_of(("float32", "bfloat16"))] = "float32"
    """Type in which the model computes."""
    links: tuple[Annotated[str, one_of(LINKS)], ...] = ("sigmoid", "power")
    """Functional forms to fit for a task's error as a function of the loss."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda asked: len(set(asked.tasks)) == len(asked.tasks) and all(asked.tasks),
            "downstream.tasks is {self.tasks}; name every task once.",
        ),
        Rule(
            lambda asked: not any(sign in name for name in asked.tasks for sign in "*,"),
            "downstream.tasks is {self.tasks}, which contains a pattern; name tasks or groups one by one.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a study. The first stage has the study's own models. ``moejax.study.stages`` makes the models of a
    later stage from the rows of the previous one.
    """

    name: str
    make: Any = None
    """Function from the ``moejax.study.stages.StageResult`` of the previous stage to the settings of a ``StageModels``;
    None for the first stage.
    """
    references: tuple[str, ...] = ()
    """Models of the first stage that serve as baselines and never win."""
    expected: str = ""
    """Model of the first stage that a dry run assumes to win."""
    models: tuple[str, ...] = ()
    """Models of the stage, if known; omitted in a config."""
    made_from: dict[str, Scale] = field(default_factory=dict)
    """Losses of the previous stage from which a later stage was made, keyed by model; omitted in a config."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A set of models, each trained by the study's recipe with its own changes."""

    name: str
    models: dict[str, Architecture]
    """Architectures by name. An architecture may occur under several names, for example with different recipes."""
    recipe: Recipe
    recipes: dict[str, Any] = field(default_factory=dict)
    """Recipe settings of single models that differ from ``recipe``, keyed by model name, such as ``{"small":
    {"budgets_tokens": [1e9], "optimizer": {"learning_rate": 1e-3}}}``.
    """
    seeds: dict[str, Seed] = field(default_factory=dict)
    """Seeds of single models that differ from the study's seed, keyed by model name."""
    seed: Seed = 0
    analysis: Analysis = field(default_factory=Analysis)
    downstream: Downstream = field(default_factory=Downstream)
    """Tasks on which every checkpoint is evaluated after training; none by default."""
    stated: tuple[Stated, ...] = ()
    """Totals that the paper states for these runs."""
    notes: dict[str, str] = field(default_factory=dict)
    """Notes on models by name, such as inferred shapes or errors in the paper."""
    stages: tuple[Stage, ...] = ()
    """Stages, which are trained one after another; empty if all models are known from the start."""

    def models_of(self, stage: Stage) -> tuple[str, ...]:
        """Return the names of a stage's models; empty if they are not known yet."""
        if stage.models or stage.name != self.stages[0].name:
            return stage.models
        return tuple(self.models)

    @property
    def unknown_stages(self) -> tuple[str, ...]:
        """Names of the stages whose models are not known yet."""
        return tuple(stage.name for stage in self.stages if not self.models_of(stage))

    def trainings(self) -> list[Training]:
        """Return one training run per model, longest first, so that workers end at about the same time."""
        shared = dump(self.recipe)
        every = [
            Training(
                name=name,
                architecture=architecture,
                recipe=_recipe(name, shared, self.recipes[name]) if name in self.recipes else self.recipe,
                seed=self.seeds.get(name, self.seed),
            )
            for name, architecture in self.models.items()
        ]
        every = [choose_hyperparameters(training).training for training in every]
        return sorted(every, key=work, reverse=True)

    def groups(self) -> dict[str, str]:
        """Return the group of each model in a fit: the name of the first model with the same architecture."""
        first: dict[Architecture, str] = {}
        return {name: first.setdefault(architecture, name) for name, architecture in self.models.items()}

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the runs, keyed by field. A folder with another identity belongs to
        another study.
        """
        # For a study with stages, only the first stage is included; each later stage has its own file.
        first = self.models_of(self.stages[0]) if self.stages else tuple(self.models)
        models = {name: dump(self.models[name]) for name in first}
        identity = {"name": self.name, "seed": self.seed, "models": models, "recipe": dump(self.recipe)}
        own = {"recipes": self.recipes, "seeds": self.seeds}
        exceptions = {name: dump({m: v for m, v in group.items() if m in first}) for name, group in own.items()}
        exceptions["stages"] = [
            {"name": stage.name} | ({} if number else {"references": list(stage.references), "models": list(first)})
            for number, stage in enumerate(self.stages)
        ]
        return identity | {name: value for name, value in exceptions.items() if value}

    def check(self, models: Sequence[str] | None = None) -> None:
        """Raise ``UserError`` if this study cannot be run.

        Args:
          models: models whose training runs are checked; all by default.
        """
        check_name(self.name)
        check_fields(self)
        if not self.models:
            raise UserError("models is empty; give at least one architecture.")
        known = list(self.models)
        named = {"recipes": self.recipes, "seeds": self.seeds, "notes": self.notes}
        for group, names in {
            **named,
            "analysis.hold_out_models": self.analysis.hold_out_models,
            "analysis.recipe_models": self.analysis.recipe_models,
        }.items():
            for name in names:
                later = group == "analysis.hold_out_models" and self.unknown_stages
                if name not in self.models and not later:
                    raise UserError(unknown(f"{group}: model {name!r}", name, known))
        self._check_stages()
        check_fields(self.analysis, "analysis")
        check_fields(self.downstream, "downstream")
        trainings = self.trainings()
        for training in trainings:
            if models is None or training.name in models:
                training.check()
                self._check_text_of(training)
        annealed.check(self.analysis, trainings)
        budgets = {budget for training in trainings for budget in training.recipe.budgets_tokens}
        if self.analysis.laws and len(budgets) < 2:
            raise UserError(
                "recipe.budgets_tokens has only one budget for all models, but a study that fits laws needs at "
                "least two, so that the largest can be held out. Add a budget, or leave analysis.laws empty."
            )

    def _check_stages(self) -> None:
        names = [stage.name for stage in self.stages]
        for number, stage in enumerate(self.stages):
            check_name(stage.name)
            if names.count(stage.name) > 1:
                raise UserError(f"stages has {stage.name} {names.count(stage.name)} times; use each stage name once.")
            if number and not callable(stage.make):
                raise UserError(
                    f"stages: {stage.name} has no function make; give a function that returns models, given the "
                    f"result of {names[number - 1]}."
                )
            if not number and stage.make is not None:
                raise UserError(
                    f"stages: {stage.name} is the first stage, so it cannot be made from rows; give its models as "
                    "the study's models, and remove make."
                )
            if stage.expected and stage.expected in stage.references:
                raise UserError(
                    f"stages: {stage.name} expects {stage.expected}, which is one of its references and cannot win; "
                    f"expect another model."
                )
            named = {"references": stage.references, "expected": (stage.expected,) if stage.expected else ()}
            for group, chosen in named.items():
                for model in chosen if self.models_of(stage) else ():
                    if model not in self.models_of(stage):
                        path = f"stages: {stage.name}.{group}: model {model!r}"
                        raise UserError(unknown(path, model, self.models_of(stage)))

    def check_data(self) -> None:
        """Raise ``UserError`` if the study requires the user to name a corpus and no corpus is named."""
        if not self.recipe.data.source.strip() and not self.recipe.data.mixture:
            raise UserError(
                f"The study {self.name} names no corpus; give one, prepared or not, with "
                f"--config.recipe.data.source=PATH."
            )

    def _check_text_of(self, training: Training) -> None:
        own = {name: getattr(self.recipe.data, name) for name in OWN_DATA}
        if replace(training.recipe.data, **own) != self.recipe.data:
            raise UserError(
                f"recipes: {training.name} changes data, but all models of a study must read the same corpus in the "
                f"same windows, so that their losses can be compared. Change recipe.data for all models; only "
                f"{listed(OWN_DATA)} may differ."
            )


def study_of(training: Training) -> Study:
    """Wrap one training run, or its vmapped runs, in a study without laws, so that an engine can run it."""
    every = vmapped_runs(training)
    axes = ("learning_rate", "weight_decay")
    own = {
        one.name: {"optimizer": {axis: getattr(one.recipe.optimizer, axis) for axis in axes}}
        for one in every
        if one.recipe != training.recipe
    }
    return Study(
        name=training.name,
        models={one.name: training.architecture for one in every},
        recipe=training.recipe,
        recipes=own,
        seeds={one.name: one.seed for one in every if one.seed != training.seed},
        seed=training.seed,
        analysis=Analysis(laws=()),
    )


def _recipe(name: str, shared: dict[str, Any], exceptions: Any) -> Recipe:
    where = f"config.recipes.{name}"
    if not isinstance(exceptions, Mapping):
        raise UserError(f"{where} is {exceptions!r}; it must be a dict of settings.")
    return build(Recipe, _merged(shared, exceptions), where)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``old``, keyed by name, after merging those of ``new`` recursively."""
    both = {
        key: _merged(old[key], value) if isinstance(value, Mapping) and isinstance(old.get(key), Mapping) else value
        for key, value in new.items()
    }
    return {**old, **both}


def work(training: Training) -> float:
    """Return the FLOPs of a training run with all its branches, for scheduling and progress."""
    recipe = training.recipe
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training
    return float(per_token * recipe.total_tokens)
