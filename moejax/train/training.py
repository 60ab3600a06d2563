"""Define a training run as one frozen dataclass, which determines the results and is stored with them.

A training run consists of phases: the trunk that all budgets share, and the branch of each budget. Training runs that
differ only in seed, learning rate and weight decay can be trained by one program (``jax.vmap``). These three settings
are arguments of its functions; all others are compiled in. Each such run has its own folder, rows and checkpoints.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from moejax.architecture import Architecture
from moejax.config import Rule, check_fields, check_name, dump, unknown
from moejax.data.config import DataConfig
from moejax.errors import UserError
from moejax.laws.budget.peak_rate import LAWS, counted, peak_rate
from moejax.model import transformer
from moejax.model.loss import LossWeights
from moejax.model.parameter import Initialisation
from moejax.model.runtime import Runtime
from moejax.ranges import INT32, BelowOne, Copies, Scale, Seed, Steps, Tokens, whole
from moejax.train.batch_schedule import BatchSchedule, RampStage
from moejax.train.directory.identity import fingerprint
from moejax.train.directory.metrics import TRUNK, LoggerConfig, branch_name
from moejax.train.mesh import MeshShape, check_fits
from moejax.train.optimizer import GuardConfig, OptimizerConfig
from moejax.train.schedule import Ramp, Schedule, WarmupStableDecay
from moejax.wording import told

OTHER_BATCH = 2.0
"""Factor by which the configured batch size may differ from the law's batch size. If it differs more, a message
recommends a sweep of the learning rate.
"""


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Weights of another model to start from. Optimizer, schedule, data and step count start from the beginning."""

    source: str = ""
    """A folder of weights (``moejax convert``), a training run's folder, or a checkpoint in one; empty for random
    weights. A dense model's weights can start an MoE model; see ``moejax.weights.upcycle``.
    """
    noise: Scale = 0.0
    """Standard deviation of the noise that upcycling adds to each expert's copy of a matrix, as a share of the
    matrix's standard deviation.
    """

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda given: given.source or not given.noise,
            "initial_weights.noise is set without initial_weights.source, so there are no weights to add noise to; "
            "set the source, or remove the noise.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run besides the architecture: budgets, data, optimizer, runtime.

    All budgets share one trunk at the stable learning rate. For each budget, a branch with a decaying learning rate
    starts from the trunk (Zhao et al. §3). The longest budget determines the trunk's length, so each further budget
    costs only its decay.
    """

    budgets_tokens: tuple[Tokens, ...]
    """Training tokens of each branch, in ascending order; rounded to whole batches."""
    batch_tokens: Tokens = field(default=0, metadata={"auto": 0})
    """Tokens per optimizer step; 0, or "auto" in a config, means that ``hyperparameters`` chooses it."""
    batch_ramp: tuple[RampStage, ...] = ()
    """Smaller batches at the beginning; ``batch_tokens`` is the final size."""
    hyperparameters: str = "tian-2025"
    """A key of ``moejax.laws.budget.peak_rate.LAWS``: the law that chooses a learning rate or batch size of 0."""
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossWeights = field(default_factory=LossWeights)
    initialisation: Initialisation = field(default_factory=Initialisation)
    runtime: Runtime = field(default_factory=Runtime)
    mesh: MeshShape = field(default_factory=MeshShape)
    guard: GuardConfig = field(default_factory=GuardConfig)
    microbatches: Annotated[int, whole(1, INT32)] = 1
    """Number of microbatches per batch, computed one after another to save memory, in steps and evaluations. Losses do
    not change, with two exceptions in steps: expert capacity is per microbatch, and router noise is drawn per
    microbatch."""
    ema_decay: BelowOne = 0.0
    """Decay of the exponential moving average (EMA) of the parameters; 0 disables it. The EMA is saved in checkpoints
    and exported by ``moejax convert --ema``; losses in log and rows use the parameters."""
    log_every_steps: Steps = 10
    evaluate_tokens: Tokens = 0
    """Tokens between validations; 0 evaluates only at the end of a budget."""
    checkpoint_tokens: Tokens = 0
    """Tokens between checkpoints; the interval is shorter during a batch ramp. 0 saves every 15 minutes. The start and
    end of branches are always saved.
    """
    keep_checkpoints: Annotated[int, whole(2, 1_000_000)] = 2
    """Number of newest checkpoints to keep for the trunk and for each branch, at least 2, so that an earlier checkpoint
    exists if the newest cannot be restored. Checkpoints at the start of branches are always kept.
    """
    keep_every_tokens: Tokens = 0
    """Interval in tokens of checkpoints that are kept permanently, in addition to the newest; 0 for none."""
    keep_best: Copies = 0
    """Number of checkpoints with the lowest validation loss to keep for the trunk and for each branch, in addition to
    the newest.
    """
    hang_seconds: Scale = 7200.0
    """Timeout in seconds for one step, because a device or a link may hang. After the timeout, the training run ends
    with a message and an exit status that requests a restart. 0 waits forever; compilation, evaluation and saving do
    not count.
    """
    loggers: LoggerConfig = field(default_factory=LoggerConfig)
    """Loggers used in addition to ``metrics.jsonl``."""
    initial_weights: InitialWeights = field(default_factory=InitialWeights)

    @property
    def batch_sequences(self) -> int:
        """Return the number of sequences per optimizer step."""
        return self.batch_tokens // self.data.sequence_length

    @property
    def batch_schedule(self) -> BatchSchedule:
        """Return the batch schedule."""
        return BatchSchedule(self.batch_ramp, self.batch_tokens)

    @property
    def warmup_steps(self) -> int:
        """Return the number of warm-up steps."""
        steps = self.batch_schedule.steps(self.optimizer.warmup_tokens)
        return steps + (self.tokens(steps) < self.optimizer.warmup_tokens)

    @property
    def evaluate_steps(self) -> int:
        """Return the number of steps between validations; 0 if only the ends of budgets are evaluated."""
        return self._steps_between(self.evaluate_tokens)

    @property
    def checkpoint_steps(self) -> int:
        """Return the number of steps between checkpoints; 0 if only the start and end of branches are saved at fixed
        steps."""
        return self._steps_between(self.checkpoint_tokens)

    @property
    def keep_every_steps(self) -> int:
        """Return the number of steps between permanent checkpoints; 0 for none."""
        return self._steps_between(self.keep_every_tokens)

    def _steps_between(self, tokens: int) -> int:
        return max(1, tokens // self.batch_tokens) if tokens else 0

    def steps(self, budget_tokens: int) -> int:
        """Return the number of optimizer steps of a budget."""
        return self.batch_schedule.steps(budget_tokens)

    def tokens(self, steps: int) -> int:
        """Return the number of tokens in the first ``steps`` steps."""
        return self.batch_schedule.tokens(steps)

    def of_one_step(self, budgets_tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return two budgets from an ascending list that end at the same step; None if there are no such budgets."""
        pairs = itertools.pairwise(budgets_tokens)
        return next(((one, other) for one, other in pairs if self.steps(one) == self.steps(other)), None)

    def decay_start(self, budget_tokens: int) -> int:
        """Return the step at which a budget's branch leaves the trunk."""
        if self.optimizer.decay_share == 1:
            return max(self.warmup_steps, 1)
        steps = self.steps(budget_tokens)
        end, batch = self.tokens(steps), self.batch_schedule.at(steps - 1).batch_tokens
        return self.steps(end - batch * max(1, round(self.optimizer.decay_share * (end / batch))))

    @property
    def trunk_steps(self) -> int:
        """Return the number of steps of the trunk, which ends where the last branch starts."""
        return self.decay_start(max(self.budgets_tokens))

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the trunk and all branches."""
        return self.trunk_steps + sum(self.steps(b) - self.decay_start(b) for b in self.budgets_tokens)

    @property
    def total_tokens(self) -> int:
        """Return the number of tokens of the trunk and all branches."""
        branches = [self.tokens(self.steps(b)) - self.tokens(self.decay_start(b)) for b in self.budgets_tokens]
        return self.tokens(self.trunk_steps) + sum(branches)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda recipe: recipe.batch_tokens > 0 and recipe.batch_tokens % recipe.data.sequence_length == 0,
            "batch_tokens is {self.batch_tokens}; it must be a positive multiple of data.sequence_length, which is "
            "{self.data.sequence_length}.",
        ),
        Rule(lambda recipe: recipe.budgets_tokens, "budgets_tokens is empty; name at least one token budget."),
        Rule(
            lambda recipe: list(recipe.budgets_tokens) == sorted(set(recipe.budgets_tokens)),
            "budgets_tokens is {self.budgets_tokens}; list each budget once, in ascending order.",
        ),
        Rule(
            lambda recipe: not recipe.data.decay_mixture or recipe.optimizer.final_share < 1,
            "data.decay_mixture is used while the learning rate decays, but with optimizer.final_share = 1 the rate "
            "never decays. Lower optimizer.final_share, or remove data.decay_mixture.",
        ),
        Rule(
            lambda recipe: not recipe.data.decay_mixture or recipe.optimizer.decay_share < 1,
            "data.decay_mixture is used while the learning rate decays, but with optimizer.decay_share = 1 the rate "
            "always decays after the warm-up. Lower optimizer.decay_share, or give these weights in data.mixture.",
        ),
        Rule(
            lambda recipe: not recipe.keep_best or _is_multiple(recipe.checkpoint_steps, recipe.evaluate_steps),
            "keep_best is {self.keep_best}, evaluate_tokens {self.evaluate_tokens:,} and checkpoint_tokens "
            "{self.checkpoint_tokens:,}; only evaluated checkpoints can be compared, so make checkpoint_tokens a "
            "multiple of evaluate_tokens.",
        ),
        Rule(
            lambda recipe: (
                not recipe.keep_every_tokens or _is_multiple(recipe.keep_every_steps, recipe.checkpoint_steps)
            ),
            "keep_every_tokens is {self.keep_every_tokens:,} and checkpoint_tokens {self.checkpoint_tokens:,}; only "
            "saved checkpoints can be kept, so make keep_every_tokens a multiple of checkpoint_tokens.",
        ),
    )

    def check(self) -> None:
        """Raise ``UserError`` if the recipe is invalid."""
        check_fields(self)
        for part in (self.data, self.loss, self.initialisation, self.runtime, self.loggers):
            part.check()
        for name in ("initial_weights", "optimizer", "guard"):
            check_fields(getattr(self, name), name)
        self.batch_schedule.check(self.data.sequence_length, self.budgets_tokens)
        for stage in self.batch_schedule.stages():
            if 0 < self.data.unique_tokens < stage.batch_tokens:
                raise UserError(
                    f"data.unique_tokens is {self.data.unique_tokens:,}, fewer than the {stage.batch_tokens:,} "
                    "tokens of one batch, which would contain a row twice; raise data.unique_tokens, or lower "
                    "batch_tokens."
                )
            if (sequences := stage.batch_tokens // self.data.sequence_length) % self.microbatches:
                raise UserError(
                    f"microbatches is {self.microbatches}, but a batch has {sequences} sequences; all microbatches "
                    "must have equally many sequences. Choose a divisor."
                )
        if doubled := self.of_one_step(self.budgets_tokens):
            raise UserError(
                f"budgets_tokens has {doubled[0]:,} and {doubled[1]:,}, which both end at step "
                f"{self.steps(doubled[0]):,}, because a batch has {self.batch_tokens:,} tokens; list only one of "
                "them."
            )
        shortest = self.budgets_tokens[0]
        if self.steps(shortest) < 2:
            raise UserError(
                f"The budget of {shortest:,} tokens is shorter than two steps of {self.batch_tokens:,} tokens; "
                "raise the budget, or lower batch_tokens."
            )
        if self.decay_start(shortest) < max(self.warmup_steps, 1):
            raise UserError(
                f"The budget of {shortest:,} tokens starts its decay before the warm-up of "
                f"{self.optimizer.warmup_tokens:,} tokens, or the first step, ends; raise the budget, or lower "
                f"optimizer.warmup_tokens or optimizer.decay_share."
            )


def _is_multiple(steps: int, every: int) -> bool:
    # 0 means never.
    return steps > 0 and every > 0 and steps % every == 0


@dataclass(frozen=True, kw_only=True)
class VmapAxes:
    """Axes that expand a training run into several runs, one per combination of values. An empty axis uses the recipe's
    value.
    """

    seeds: tuple[Seed, ...] = ()
    """Seeds of initialization, noise and, unless ``data.order_seed`` is set, the data order."""
    learning_rates: tuple[Scale, ...] = ()
    weight_decays: tuple[Scale, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.seeds or self.learning_rates or self.weight_decays)

    RULES: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            lambda axes, axis=axis: len(set(getattr(axes, axis))) == len(getattr(axes, axis)),
            f"vmap.{axis} is {{self.{axis}}}; each value is a run, so list it only once.",
        )
        for axis in ("seeds", "learning_rates", "weight_decays")
    )


@dataclass(frozen=True, kw_only=True)
class Training:
    """One architecture, trained by one recipe from one seed: everything that determines the numbers of its runs."""

    name: str
    architecture: Architecture
    recipe: Recipe
    seed: Seed = 0
    vmap: VmapAxes = field(default_factory=VmapAxes)
    """Axes that expand this training run into several vmapped runs."""

    def __post_init__(self) -> None:
        # The resolved loss weights are stored, so that the run's files record them.
        object.__setattr__(self, "recipe", replace(self.recipe, loss=self.recipe.loss.of(self.architecture)))

    @property
    def order_seed(self) -> int:
        """Return the seed of the data order."""
        return self.seed if self.recipe.data.order_seed is None else self.recipe.data.order_seed

    @property
    def counted_share(self) -> float:
        """Return the share of a batch that an extra forward pass processes to count loads for the balance loss. The
        pass processes all microbatches except the first; the share is 0 if no pass is needed."""
        loss = self.recipe.loss
        weighs = self.architecture.is_moe and loss.balance and loss.balance_loads == "batch"
        return 1 - 1 / self.recipe.microbatches if weighs else 0.0

    def fingerprint(self) -> str:
        """Return a hash of all settings that affect results. Runs with equal fingerprints have equal results up to
        rounding."""
        return fingerprint(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain data, keyed by field name; ``moejax.config.build`` reads them back."""
        return dump(self)

    def check(self) -> None:
        """Raise ``UserError`` if these settings are invalid."""
        check_name(self.name)
        check_fields(self)
        check_fields(self.vmap, "vmap")
        try:
            transformer.check(self.architecture, self.recipe.runtime)
        except ValueError as error:
            raise UserError(f"{self.name}: {told(error)}") from None
        self.recipe.check()
        depth, length = self.architecture.num_mtp_layers, self.recipe.data.sequence_length
        if depth >= length:
            raise UserError(
                f"{self.name}: num_mtp_layers is {depth} and data.sequence_length {length}; the last module "
                f"predicts the token {depth + 1} positions ahead, beyond the end of every sequence. Lower "
                f"num_mtp_layers or raise data.sequence_length."
            )

    def check_vocabulary(self, tokens: int, source: str) -> None:
        """Raise ``UserError`` if the text ``source`` needs ``tokens`` tokens and the model's vocabulary is smaller."""
        if self.architecture.vocab_size < tokens:
            raise UserError(
                f"vocab_size is {self.architecture.vocab_size}, but {source} has tokens up to {tokens - 1}; set "
                f"vocab_size to at least {tokens}."
            )

    def check_mesh(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise ``UserError`` if a batch, the experts, or their hidden units cannot be split over a mesh."""
        recipe = self.recipe
        for stage in recipe.batch_schedule.stages():
            sequences = stage.batch_tokens // recipe.data.sequence_length
            check_fits(self.architecture, sequences, recipe.microbatches, mesh)


@dataclass(frozen=True)
class Chosen:
    """A training run with all hyperparameters chosen, and their derivation."""

    training: Training
    derivation: tuple[str, ...] = ()
    """Lines of text for the user; empty if no hyperparameter had to be chosen."""


def choose_hyperparameters(training: Training) -> Chosen:
    """Replace a learning rate of 0 and a ``batch_tokens`` of 0 by the values of the law ``recipe.hyperparameters``.

    The law is evaluated at the longest budget (``peak_rate.counted``). The number of sequences in a batch is rounded to
    a power of two. Most meshes and microbatch counts divide it, so the choice does not depend on them.

    Raises:
      UserError: the law is unknown, or the longest budget is too short for one batch.
    """
    recipe, named = training.recipe, training.recipe.hyperparameters
    if named not in LAWS:
        raise UserError(unknown(f"recipe.hyperparameters {named!r}", named, list(LAWS)))
    open_rate, open_batch = recipe.optimizer.learning_rate == 0, recipe.batch_tokens == 0
    if not (open_rate or open_batch) or not recipe.budgets_tokens:
        return Chosen(training)
    length, budget = recipe.data.sequence_length, max(recipe.budgets_tokens)
    design = counted(training.architecture, budget, length)
    rate = peak_rate(design, named)
    assert rate is not None, "an architecture and its tokens have all inputs"
    lines = [f"{named} ({rate.source}) for {budget:,} tokens, {design.flops:.3g} FLOPs without vocabulary:"]
    if open_rate:
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, learning_rate=rate.value))
        lines += [f"  optimizer.learning_rate = {rate.value:.3g}", f"  {rate.spread}"]
    best = float(LAWS[named].law(design)["batch_tokens"])
    if open_batch:
        batch = 2 ** max(0, round(math.log2(best / length))) * length
        recipe = replace(recipe, batch_tokens=batch)
        lines.append(f"  batch_tokens = {batch:,}: the law's {best:,.0f}, rounded to a power of two in sequences")
    elif not best / OTHER_BATCH <= recipe.batch_tokens <= best * OTHER_BATCH:
        lines.append(
            f"  The learning rate is for batches of {best:,.0f} tokens, but batch_tokens is "
            f"{recipe.batch_tokens:,}; sweep the learning rate."
        )
    return Chosen(replace(training, recipe=recipe), (*lines, *(f"  {sentence}" for sentence in rate.beyond)))


def vmapped_runs(training: Training) -> list[Training]:
    """Return the runs that ``training.vmap`` expands to, with names such as ``NAME-seed1-lr0.01``. Without axes, return
    only ``training`` itself.
    """
    axes = training.vmap
    if not axes:
        return [training]
    found, optimizer = [], training.recipe.optimizer
    for seed, rate, decay in itertools.product(
        axes.seeds or (training.seed,),
        axes.learning_rates or (optimizer.learning_rate,),
        axes.weight_decays or (optimizer.weight_decay,),
    ):
        own = [(axes.seeds, f"seed{seed}"), (axes.learning_rates, f"lr{rate}"), (axes.weight_decays, f"wd{decay}")]
        name = "-".join([training.name, *(text for axis, text in own if axis)])
        recipe = replace(training.recipe, optimizer=replace(optimizer, learning_rate=rate, weight_decay=decay))
        found.append(replace(training, name=name, seed=seed, recipe=recipe, vmap=VmapAxes()))
    return found


def shared_settings(training: Training) -> Training:
    """Return a training run without its name and the settings in which vmapped runs may differ. Training runs can be
    vmapped together if this function returns equal values for them.
    """
    optimizer = replace(training.recipe.optimizer, learning_rate=1.0, weight_decay=0.0)
    return replace(training, name="", seed=0, recipe=replace(training.recipe, optimizer=optimizer))


def vmap_groups(trainings: Sequence[Training], most: int) -> list[list[Training]]:
    """Group training runs that can be vmapped, at most ``most`` per group, in the order of the groups' first
    training runs.
    """
    groups: dict[Training, list[list[Training]]] = {}
    for training in trainings:
        of_kind = groups.setdefault(shared_settings(training), [])
        if not of_kind or len(of_kind[-1]) == most:
            of_kind.append([])
        of_kind[-1].append(training)
    order = {training.name: number for number, training in enumerate(trainings)}
    return sorted((group for of_kind in groups.values() for group in of_kind), key=lambda group: order[group[0].name])


@dataclass(frozen=True)
class Phase:
    """A trunk or a branch: consecutive steps under one schedule, with its own checkpoints."""

    name: str
    start: int
    end: int
    schedule: Schedule
    steps_before: int
    """Number of steps in the phases before this one."""

    @property
    def decay_start(self) -> int | None:
        """Step of a branch after which its learning rate decays and ``data.decay_mixture`` is read; None for the
        trunk."""
        return None if self.name == TRUNK else self.start

    def steps_done(self, step: int) -> int:
        """Return the number of steps done in trunk and branches after ``step`` of this phase."""
        return self.steps_before + step - self.start


def phases(training: Training) -> tuple[Phase, list[Phase]]:
    """Return the trunk, and a branch per budget."""
    recipe, optimizer = training.recipe, training.recipe.optimizer
    last = recipe.batch_tokens

    def schedule(decay_start: float, decay_steps: float) -> Schedule:
        learning_rate = WarmupStableDecay(
            peak=optimizer.learning_rate,
            warmup_steps=recipe.tokens(recipe.warmup_steps) / last,
            decay_start=decay_start,
            decay_steps=decay_steps,
            final_share=optimizer.final_share,
            ramp=_ramp(recipe),
            shape=optimizer.decay_shape,
        )
        return Schedule(learning_rate=learning_rate, weight_decay=float(optimizer.weight_decay))

    trunk = Phase(TRUNK, 0, recipe.trunk_steps, schedule(math.inf, 1.0), 0)
    branches, before = [], trunk.end
    for budget in recipe.budgets_tokens:
        start, end = recipe.decay_start(budget), recipe.steps(budget)
        falls = schedule(recipe.tokens(start) / last, (recipe.tokens(end) - recipe.tokens(start)) / last)
        branches.append(Phase(branch_name(budget), start, end, falls, before))
        before += end - start
    return trunk, branches


def phase_text(recipe: Recipe, phase: str) -> str:
    """Return a phase's name for progress lines, such as ``trunk of 3 budgets`` or ``budget 2 of 3``. For a single
    budget, or a phase of another recipe, return an empty string.
    """
    branches = [branch_name(budget) for budget in recipe.budgets_tokens]
    if len(branches) == 1 or phase not in (TRUNK, *branches):
        return ""
    if phase == TRUNK:
        return f"trunk of {len(branches)} budgets"
    return f"budget {branches.index(phase) + 1} of {len(branches)}"


def _ramp(recipe: Recipe) -> Ramp | None:
    if not recipe.batch_ramp:
        return None
    stages, last = list(recipe.batch_schedule.stages()), recipe.batch_tokens
    share = np.array([stage.batch_tokens / last for stage in stages], np.float32)
    return Ramp(
        first_step=np.array([stage.first_step for stage in stages], np.float32),
        before=np.array([stage.tokens_before / last for stage in stages], np.float32),
        share=share,
        rate=share**recipe.optimizer.batch_exponent,
    )
