"""What a study is: a family of models, a recipe with each model's exceptions, and what is asked of the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from moejax.architecture import Architecture
from moejax.config import build, check_fields, check_name, dump, unknown
from moejax.errors import UserError
from moejax.evaluation.suites import suite_of
from moejax.fit.score_links import LINKS
from moejax.fit.table_checks import SETTINGS
from moejax.laws import LAWS
from moejax.laws.accounting import flops_per_token
from moejax.laws.design import FIELDS
from moejax.ranges import INT32, RESAMPLES, NumberRange, Scale, Seed, Tokens, whole
from moejax.study import annealed
from moejax.train.auto import choose_hyperparameters
from moejax.train.training import Recipe, Training
from moejax.train.vmapped_runs import vmapped_runs
from moejax.wording import listed

HOLD_OUT = (*FIELDS, "sparsity")
"""What runs can be large in, to be held out."""

RECIPES = ("tian",)
"""Papers' procedures that a study can end with."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is computed from a study's runs. It may change after training."""

    laws: tuple[str, ...] = ("chinchilla", "effective_params")
    """Laws to fit, by their names in ``moejax.laws.LAWS``; none if the runs are only trained."""
    resamples: Annotated[int, RESAMPLES] = 300
    """Bootstrap resamples, drawn by architecture."""
    decision_flops: Annotated[float, NumberRange(1, 1e40)] = 1e15
    """Budget at which the fitted laws are asked for the best model."""
    best_by: tuple[str, ...] = ()
    """Settings that the study sweeps, such as ``learning_rate``: laws are fitted to the run of the lowest loss among
    those of one architecture and token budget. All runs are fitted if empty."""
    hold_out: str = "tokens"
    """What is held out to test each law: the runs largest in this field of a Design, or the models named in
    ``hold_out_models``. A law that the other runs cannot set is not fitted."""
    hold_out_models: tuple[str, ...] = ()
    anneal: str = ""
    """``predict``: of budgets that are not trained, the loss that a branch of the model's trunk would be annealed to is
    predicted, for a table of its own (``moejax.study.annealed``); none if empty."""
    anneal_tokens: tuple[Tokens, ...] = ()
    """Those budgets, in ascending order."""
    anneal_law: str = "momentum"
    """The law of loss curves that is fitted to each model's trunk and branches."""
    recipe: str = ""
    """A paper's whole procedure that the runs are put through after the laws, one of ``RECIPES``; none if empty."""
    recipe_models: tuple[str, ...] = ()
    """Models whose runs it reads; all if empty. Its figures are of all."""
    seed: Annotated[int, whole(0, INT32)] = 0

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if something asked for does not exist."""
        check_fields(self, "analysis")
        if self.hold_out not in HOLD_OUT:
            raise UserError(unknown(f"analysis.hold_out: field {self.hold_out!r}", self.hold_out, HOLD_OUT))
        for name in self.best_by:
            if name not in SETTINGS:
                raise UserError(unknown(f"analysis.best_by: setting {name!r}", name, SETTINGS))
        if self.anneal not in ("", annealed.PREDICT):
            raise UserError(unknown(f"analysis.anneal: {self.anneal!r}", self.anneal, (annealed.PREDICT,)))
        if self.recipe and self.recipe not in RECIPES:
            raise UserError(unknown(f"analysis.recipe: {self.recipe!r}", self.recipe, RECIPES))
        for name in self.laws:
            if name not in LAWS:
                raise UserError(unknown(f"analysis.laws: law {name!r}", name, list(LAWS)))
            if self.laws.count(name) > 1:
                raise UserError(f"analysis.laws has {name} {self.laws.count(name)} times; name every law once.")


OWN_DATA = ("unique_tokens", "decay_mixture")
"""Settings of the data that models of a study may differ in: none changes what they are measured on."""

TOTALS = ("models", "runs", "tokens", "flops", "flops_without_shared_trunks", "chip_hours", "cost")
"""What is summed over a study's runs before they are run; see ``moejax.study.estimate``."""


@dataclass(frozen=True, kw_only=True)
class Stated:
    """A total that a paper states of its experiments, to hold the plan to."""

    quantity: str
    """One of ``TOTALS``."""
    value: Annotated[float, NumberRange(0, 1e60)]
    source: str


@dataclass(frozen=True, kw_only=True)
class Downstream:
    """What is asked of a study's checkpoints, one per model and budget. It may change after training."""

    suite: str = ""
    """A document's list of tasks, one of ``moejax.evaluation.suites.SUITES``; none if empty."""
    tasks: tuple[str, ...] = ()
    """Tasks or groups of lm-evaluation-harness, besides; or ``validation_choices``, a task of the study's own text."""
    num_fewshot: Annotated[int, whole(-1, 1_000)] = -1
    """Shots in front of the documents of ``tasks``; -1 for each task's own."""
    task_path: str = ""
    """A folder with task files of one's own, before the harness's."""
    limit: Annotated[int, whole(0, INT32)] = 0
    """The first documents of each task only; 0 for all."""
    max_new_tokens: Annotated[int, whole(0, INT32)] = 0
    """Most tokens of a generated answer, where the task allows as many; 0 for the task's own number."""
    batch_tokens: Annotated[int, whole(1, INT32)] = 8_192
    """Tokens computed at once."""
    dtype: str = "float32"
    """To compute in: ``float32`` or ``bfloat16``."""
    links: tuple[str, ...] = ("sigmoid", "power")
    """Forms of a task's error by the loss that are fitted, of ``moejax.fit.score_links.LINKS``."""

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if something asked for does not exist."""
        check_fields(self, "downstream")
        if self.suite:
            suite_of(self.suite)
        for name in self.tasks:
            if not name or self.tasks.count(name) > 1:
                raise UserError(f"downstream.tasks has {name!r} {self.tasks.count(name)} times; name every task once.")
            if "*" in name or "," in name:
                raise UserError(f"downstream.tasks has {name!r}; it is no pattern, so name tasks or groups one by one.")
        if self.dtype not in ("float32", "bfloat16"):
            raise UserError(unknown(f"downstream.dtype {self.dtype!r}", self.dtype, ("float32", "bfloat16")))
        for name in self.links:
            if name not in LINKS:
                raise UserError(unknown(f"downstream.links: {name!r}", name, list(LINKS)))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a study. The first has the study's own models, the models of a later one are made from the rows of the
    one before; ``moejax.study.stages`` makes them."""

    name: str
    make: Any = None
    """Function from the ``moejax.study.stages.StageResult`` of the stage before to the settings of a ``StageModels``;
    None for the first stage."""
    references: tuple[str, ...] = ()
    """Of the first stage, models that the others are compared with and that never win."""
    expected: str = ""
    """Of the first stage, the model that a dry run takes for its winner."""
    models: tuple[str, ...] = ()
    """Its models, where they are known; left out in a config."""
    made_from: dict[str, Scale] = field(default_factory=dict)
    """Of a later stage, the losses of the stage before that it was made from, by model; left out in a config."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A family of models, each trained by the study's recipe with its own exceptions."""

    name: str
    models: dict[str, Architecture]
    """Architectures by name. One architecture under several names is trained several times, by several recipes."""
    recipe: Recipe
    recipes: dict[str, Any] = field(default_factory=dict)
    """By a model's name, what its recipe has otherwise than ``recipe``, as nested settings:
    ``{"small": {"budgets_tokens": [1e9], "optimizer": {"learning_rate": 1e-3}}}``."""
    seeds: dict[str, Seed] = field(default_factory=dict)
    """By a model's name, its seed if it is not the study's."""
    seed: Seed = 0
    analysis: Analysis = field(default_factory=Analysis)
    downstream: Downstream = field(default_factory=Downstream)
    """Tasks that every checkpoint is asked after training; none if it names none."""
    stated: tuple[Stated, ...] = ()
    """What the paper says these runs come to."""
    notes: dict[str, str] = field(default_factory=dict)
    """By a model's name, what a reader must know of it: inferred shapes, slips of the paper."""
    stages: tuple[Stage, ...] = ()
    """Stages, one run after another; none if all models are known from the start."""

    def models_of(self, stage: Stage) -> tuple[str, ...]:
        """Names of a stage's models; none if they are not known yet."""
        if stage.models or stage.name != self.stages[0].name:
            return stage.models
        return tuple(self.models)

    @property
    def unknown_stages(self) -> tuple[str, ...]:
        """Names of the stages whose models are not known yet."""
        return tuple(stage.name for stage in self.stages if not self.models_of(stage))

    def trainings(self) -> list[Training]:
        """One training per model; those that take longest first, so that workers end together."""
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
        """By a model's name, the first model of the same architecture: runs that belong together in a fit."""
        first: dict[Architecture, str] = {}
        return {name: first.setdefault(architecture, name) for name, architecture in self.models.items()}

    def identity(self) -> dict[str, Any]:
        """What decides the runs: a folder that holds another identity belongs to another study."""
        # Of a study of stages, what is known from the start; each later stage has a file of its own.
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
        """Raise ``UserError``, a sentence with value, rule and remedy, if this study cannot be run.

        Args:
          models: those whose trainings are checked, if the others were; all, if not given.
        """
        check_name(self.name)
        check_fields(self)
        if not self.models:
            raise UserError("models is empty; a study needs at least one architecture.")
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
        self.analysis.check()
        self.downstream.check()
        for stated in self.stated:
            if stated.quantity not in TOTALS:
                raise UserError(unknown(f"stated: quantity {stated.quantity!r}", stated.quantity, TOTALS))
        trainings = self.trainings()
        for training in trainings:
            if models is None or training.name in models:
                training.check()
                self._check_text_of(training)
        annealed.check(self.analysis, trainings)
        budgets = {budget for training in trainings for budget in training.recipe.budgets_tokens}
        if self.analysis.laws and len(budgets) < 2:
            raise UserError(
                "recipe.budgets_tokens has one budget, for all models; a study that fits laws needs at least two, so "
                "that the largest can be held out: add one, or leave analysis.laws empty."
            )

    def _check_stages(self) -> None:
        names = [stage.name for stage in self.stages]
        for number, stage in enumerate(self.stages):
            check_name(stage.name)
            if names.count(stage.name) > 1:
                raise UserError(f"stages has {stage.name} {names.count(stage.name)} times; name every stage once.")
            if number and not callable(stage.make):
                raise UserError(
                    f"stages: {stage.name} has no function make; give one, from the result of {names[number - 1]} to "
                    f"models."
                )
            if not number and stage.make is not None:
                raise UserError(
                    f"stages: {stage.name} is the first stage, so there are no rows to make it from; give its models "
                    f"as the study's models, without make."
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
        """Raise ``UserError`` if the study leaves its corpus to its user, who has not named one."""
        if not self.recipe.data.source and not self.recipe.data.mixture:
            raise UserError(
                f"The study {self.name} leaves its corpus to you; name one, prepared or not, with "
                f"--config.recipe.data.source=PATH (--dry-run needs none)."
            )

    def _check_text_of(self, training: Training) -> None:
        own = {name: getattr(self.recipe.data, name) for name in OWN_DATA}
        if replace(training.recipe.data, **own) != self.recipe.data:
            raise UserError(
                f"recipes: {training.name} changes data; all models of a study read the same corpus in the same "
                f"windows, or their losses could not be compared: change recipe.data. Only {listed(OWN_DATA)} may "
                f"differ."
            )


def study_of(training: Training) -> Study:
    """A study of one training, or of its vmapped runs, that fits no laws: what an engine is handed."""
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
        raise UserError(f"{where} is {exceptions!r}; it must be a group of settings.")
    return build(Recipe, _merged(shared, exceptions), where)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``old`` with the settings of ``new``, group by group."""
    both = {
        key: _merged(old[key], value) if isinstance(value, Mapping) and isinstance(old.get(key), Mapping) else value
        for key, value in new.items()
    }
    return {**old, **both}


def work(training: Training) -> float:
    """FLOPs of a training with all its branches, for scheduling and progress."""
    recipe = training.recipe
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training
    return float(per_token * recipe.total_tokens)
