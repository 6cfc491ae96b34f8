"""The train loop's settings."""

from typing import Literal, TypeAlias

import pydantic

from bert_jax.data.loader.packing import PackingSection
from bert_jax.errors import UserError
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.section import PathText, Section

TrackerName: TypeAlias = Literal["wandb", "mlflow"]


class PhaseSection(Section):
    """Consecutive steps with one dataset, sequence length and batch size.

    A phase that names its own learning rate starts a schedule of its own (warm-up and decay over
    it and the phases after it that name none); otherwise one schedule spans the run, as in
    google-research/bert's 90% at 128 tokens and 10% at 512.

    With ``packing`` a row, and so the batch size, counts several examples; evaluation never packs.
    """

    dataset: PathText
    """Its directory, local or ``gs://``: made by `bert-jax examples`, or TFRecords of
    google-research/bert."""
    steps: int = pydantic.Field(ge=1)
    """Of the optimizer."""
    seq_length: int = pydantic.Field(default=512, ge=8)
    """Tokens in a row; longer examples are refused."""
    batch_size: int = pydantic.Field(default=256, ge=1)
    """Rows of one step, over all devices and hosts."""
    accumulation: int = pydantic.Field(default=1, ge=1)
    """Parts of a batch whose gradients are summed before the update: less memory, the same
    numbers."""
    max_predictions: int | None = pydantic.Field(default=None, ge=1)
    """Most masked tokens in a row. null: the masking rate times the row."""
    packing: PackingSection | None = None
    """Puts several examples into a row."""
    learning_rate: float | None = pydantic.Field(default=None, gt=0)
    """The peak of a schedule of its own."""
    warmup_steps: int | None = pydantic.Field(default=None, ge=0)
    """Of that schedule."""

    def check_positions(self, positions: int, *, key: str) -> None:
        """Raises UserError if rows are longer than a model's positions; `key` is the phase's."""
        if self.seq_length > positions:
            raise UserError(
                "phases.seq_length",
                "found {found}, allowed: at most {positions}, the model's positions "
                "(model.architecture.max_position_embeddings)",
                place=f"{key}.seq_length",
                found=self.seq_length,
                positions=positions,
            )

    @property
    def microbatch(self) -> int:
        """Rows that are worked on at a time, over all devices and hosts."""
        return self.batch_size // self.accumulation


class EvaluationSection(Section):
    """Evaluation on the validation split while training."""

    every: int = pydantic.Field(default=1000, ge=1)
    """Steps from one to the next."""
    batch_size: int | None = pydantic.Field(default=None, ge=1)
    """Rows at a time; the figures do not depend on it. null: the phase's `batch_size` over its
    `accumulation`."""
    examples: int | None = pydantic.Field(default=None, ge=1)
    """Number of examples of the validation split. null: all."""


class CheckpointSection(Section):
    """When to save, and which checkpoints to keep.

    A save is due after `every` steps or `every_minutes` since the last one, whichever comes first.
    If a save fails (a full disk), `on_error` decides; the last save of a run must succeed.
    """

    every: int = pydantic.Field(default=1000, ge=1)
    """Steps from one save to the next."""
    every_minutes: float | None = pydantic.Field(default=None, gt=0, le=525_600)
    """Minutes after which a save is due as well."""
    keep_last: int = pydantic.Field(default=3, ge=1)
    """Number of newest checkpoints to keep."""
    keep_every: int | None = pydantic.Field(default=None, ge=1)
    """Keep checkpoints whose step this divides."""
    keep_best: int = pydantic.Field(default=1, ge=0)
    """Number of best checkpoints to keep, by the loss on the current validation data."""
    on_error: Literal["stop", "warn"] = "stop"
    """If a save fails: stop the run with exit code 1, or warn and continue."""


class BadStepsSection(Section):
    """The response to a step whose loss or gradient norm is not finite, or spikes.

    A spike is a loss or a gradient norm more than 10 robust standard deviations (1.4826 × the
    median absolute deviation, at least 5% of the median) above the median of the phase's last
    ``window`` steps. After three skips among the last ``window`` steps, or three rollbacks to one
    checkpoint, the next bad step stops the run.
    """

    on_non_finite: Literal["skip", "rollback", "stop"] = "skip"
    """`skip` leaves the step out; `rollback` returns to the last checkpoint and skips the data
    since."""
    on_spike: Literal["ignore", "warn", "skip", "rollback", "stop"] = "warn"
    """Response to finite numbers far from the last steps'."""
    window: int = pydantic.Field(default=128, ge=8)
    """Number of steps to compare with."""


class WatchdogSection(Section):
    """A step hangs after ten times the median of the last steps, and not sooner than a floor."""

    floor_seconds: float = pydantic.Field(default=120.0, gt=0)
    """The shortest time after which a step hangs."""


class ProfileSection(Section):
    """Which steps to trace, counted from 1 over the whole run; the first ones compile."""

    start: int = pydantic.Field(default=10, ge=1)
    """The first step that is traced."""
    steps: int = pydantic.Field(default=3, ge=1, le=100)
    """How many."""

    @property
    def last(self) -> int:
        """The last step that is traced."""
        return self.start + self.steps - 1


class TrainSection(Section):
    """The run: phases, evaluation, checkpoints, reports."""

    phases: tuple[PhaseSection, ...] = pydantic.Field(min_length=1)
    """One after the other; each has its own dataset, length and batch."""
    evaluation: EvaluationSection | None = EvaluationSection()
    """On the validation split. null: none."""
    checkpoint: CheckpointSection = CheckpointSection()
    """When to save and what to keep."""
    bad_steps: BadStepsSection = BadStepsSection()
    """Response to numbers that go bad."""
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)
    """Steps from one comparison of the state's replicas to the next. null: they are not
    compared."""
    log_every: int = pydantic.Field(default=10, ge=1)
    """Steps from one line of metrics to the next."""
    example_log: bool = False
    """Whether to write down which examples each step consumes, in `examples/` of the run: about 7
    bytes an example."""
    trackers: tuple[TrackerName, ...] = ()
    """Where figures go besides metrics.jsonl and TensorBoard."""
    watchdog: WatchdogSection | None = WatchdogSection()
    """Ends a run that hangs, with exit code 43. null: waits for ever."""
    profile: ProfileSection | None = None
    """Steps to trace for TensorBoard. null: none."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def batch_sizes(self) -> dict[str, tuple[int, int]]:
        """Rows of the batches that are set, and the microbatches each is cut into, by key."""
        sizes = {
            f"train.phases.{index}.batch_size": (phase.batch_size, phase.accumulation)
            for index, phase in enumerate(self.phases)
        }
        if self.evaluation is not None and self.evaluation.batch_size is not None:
            sizes["train.evaluation.batch_size"] = (self.evaluation.batch_size, 1)
        return sizes

    def evaluation_rows(self, phase: PhaseSection) -> int:
        """Returns the rows of a batch of evaluation in a phase, over all devices and hosts.

        By default as many as the train step works on at a time, which takes more memory.
        """
        asked = self.evaluation and self.evaluation.batch_size
        return asked or phase.microbatch


def schedule_segments(section: TrainSection, optimizer: OptimizerSection) -> list[ScheduleSegment]:
    """Returns the run's schedule as segments of one warm-up and decay each.

    Raises UserError: warm-up without a learning rate of its own, or longer than its segment; a
    learning rate or warm-up of the optimizer that the first phase replaces.
    """
    segments: list[ScheduleSegment] = []
    _refuse_replaced(section.phases[0], optimizer)
    for index, phase in enumerate(section.phases):
        own = phase.learning_rate is not None
        if not own and phase.warmup_steps is not None:
            raise UserError(
                "phases.warmup",
                "found {found}, allowed: only together with a learning_rate of this phase",
                place=f"train.phases.{index}.warmup_steps",
                found=phase.warmup_steps,
            )
        if own or not segments:
            peak = phase.learning_rate if own else optimizer.learning_rate
            warmup = phase.warmup_steps if own else optimizer.warmup_steps
            segments.append(ScheduleSegment(phase.steps, peak or 0.0, warmup or 0))
        else:
            last = segments[-1]
            segments[-1] = last._replace(steps=last.steps + phase.steps)
    for segment in segments:
        if segment.warmup_steps > segment.steps:
            raise UserError(
                "optimizer.warmup",
                "found {found}, allowed: at most {steps}, the steps of its schedule",
                place="optimizer.warmup_steps",
                found=segment.warmup_steps,
                steps=segment.steps,
            )
    return segments


def _refuse_replaced(first: PhaseSection, optimizer: OptimizerSection) -> None:
    """Refuses a schedule of the optimizer if the first phase has another one.

    A default passes: a resolved configuration spells it out.
    """
    if first.learning_rate is None:
        return
    replaced = {"learning_rate": first.learning_rate, "warmup_steps": first.warmup_steps or 0}
    for name, own in replaced.items():
        found = getattr(optimizer, name)
        if found not in (own, OptimizerSection.model_fields[name].default):
            raise UserError(
                "optimizer.replaced",
                "found {found}, but train.phases.0 has its own schedule with {expected}. Set "
                "train.phases.0.{name} instead.",
                place=f"optimizer.{name}",
                found=found,
                expected=own,
                name=name,
            )
