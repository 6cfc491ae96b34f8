"""The train loop's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import pydantic

from bert_jax.data.loader.data_position import BatchSizes
from bert_jax.data.loader.mixing_section import MixedSection, MixingSection
from bert_jax.data.loader.mixture import Mixture, stage_starts
from bert_jax.data.loader.packing import PackingSection
from bert_jax.errors import SettingError, UserError, commas
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.section import Section
from bert_jax.train.evaluation_section import EvaluationSection

TrackerName: TypeAlias = Literal["wandb", "mlflow"]


class RampStage(Section):
    """Consecutive steps at the beginning of a phase, with smaller batches."""

    steps: int = pydantic.Field(ge=1)
    """Optimizer steps."""
    batch_size: int = pydantic.Field(ge=1)
    """Rows per step, over all devices and hosts."""


class PhaseSection(MixedSection):
    """Consecutive steps with one dataset or mixture, sequence length and batch size.

    If a phase sets `learning_rate`, it starts its own schedule of warm-up and decay. The schedule
    ends before the next phase that sets `learning_rate`. If no phase sets it, one schedule spans
    all phases, as in google-research/bert.

    With ``packing``, a row contains several examples. Evaluation never packs.
    """

    steps: int = pydantic.Field(ge=1)
    """Optimizer steps."""
    seq_length: int = pydantic.Field(default=512, ge=8)
    """Tokens per row. Longer examples are an error."""
    batch_size: int = pydantic.Field(default=256, ge=1)
    """Rows per step, over all devices and hosts."""
    batch_ramp: tuple[RampStage, ...] = ()
    """First stages of the phase, with rising batch sizes below `batch_size`. Their steps count
    among `steps`. A ramp changes neither the order of the rows nor their masks."""
    accumulation: int = pydantic.Field(default=1, ge=1)
    """Number of microbatches whose gradients are summed before the update. More microbatches use
    less memory and give the same result."""
    max_predictions: int | None = pydantic.Field(default=None, ge=1)
    """Maximum number of masked tokens per row. null: the masking rate times the row length."""
    packing: PackingSection | None = None
    """Packing of several examples into a row."""
    learning_rate: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Peak of the phase's own schedule."""
    warmup_steps: int | None = pydantic.Field(default=None, ge=0)
    """Warm-up steps of the phase's own schedule."""
    decay_fraction: float | None = pydantic.Field(default=None, ge=0, le=1)
    """Share of the phase's own schedule that decays. null: `optimizer.decay_fraction`."""
    rotary_theta: float | None = pydantic.Field(default=None, gt=0)
    """Base of the rotary frequencies in this phase, for encoders with rotary positions. In
    ModernBERT, it replaces `global_theta`. null: the model's setting."""

    @pydantic.model_validator(mode="after")
    def _ramp_rises(self) -> PhaseSection:
        sizes = [*(stage.batch_size for stage in self.batch_ramp), self.batch_size]
        if sizes != sorted(set(sizes)):
            raise SettingError.wrong(
                "phases.batch_ramp", commas(sizes), "rising sizes", place="batch_ramp"
            )
        if self.ramp_steps >= self.steps:
            raise SettingError(
                "phases.batch_ramp_steps",
                f"found {self.ramp_steps} steps, allowed: fewer than {self.steps}",
                place="batch_ramp",
            )
        return self

    @property
    def ramp_steps(self) -> int:
        """Number of steps of the batch ramp."""
        return sum(stage.steps for stage in self.batch_ramp)

    @property
    def rows(self) -> BatchSizes:
        """Rows of each step."""
        ramp = tuple((stage.steps, stage.batch_size) for stage in self.batch_ramp)
        return BatchSizes(self.batch_size, ramp)

    @property
    def total_rows(self) -> int:
        """Rows of all steps."""
        return self.rows.rows(self.steps).start

    def mixture(self, tokens: Mapping[str, int]) -> Mixture:
        """Returns the mixture of several datasets, in the order of `tokens`.

        `tokens` has the number of tokens of each dataset, by directory.
        """
        mixing = self.mixing or MixingSection()
        if isinstance(self.dataset, dict):
            weights = [self.dataset[path] for path in tokens]
            if mixing.until is None:
                return Mixture(weights)
            until = [mixing.until[path] for path in tokens]
            return Mixture(weights, until, stage_starts(self.steps, self.rows))
        total, power = sum(tokens.values()), mixing.smoothing
        assert power is not None, "a validator has checked it"
        return Mixture([(count / total) ** power for count in tokens.values()])

    def architecture_changes(
        self, architecture: EncoderArchitecture, *, key: str
    ) -> dict[str, float]:
        """Returns the settings that this phase changes: ``{"global_theta": 10000.0}``.

        `key` is the key of the phase. Raises UserError if the encoder has no rotary positions.
        """
        if self.rotary_theta is None:
            return {}
        if architecture.rotary_setting is None:
            raise UserError(
                "phases.rotary_theta",
                f"found {self.rotary_theta}, but {architecture.kind} has no rotary positions",
                place=f"{key}.rotary_theta",
            )
        return {architecture.rotary_setting: self.rotary_theta}

    def check_positions(self, positions: int, *, key: str) -> None:
        """Raises UserError if `seq_length` exceeds the model's number of positions.

        `key` is the key of the phase.
        """
        if self.seq_length > positions:
            raise UserError(
                "phases.seq_length",
                f"found {self.seq_length}, allowed: at most the model's {positions} positions",
                place=f"{key}.seq_length",
            )

    @property
    def max_examples(self) -> int:
        """Maximum number of examples in a row."""
        return 1 if self.packing is None else self.packing.max_examples

    @property
    def microbatch(self) -> int:
        """Rows per microbatch, over all devices and hosts."""
        return self.batch_size // self.accumulation


class CheckpointSection(Section):
    """When to save, and which checkpoints to keep.

    A save is due at each multiple of `every` steps, and `every_minutes` after the last save. If the
    last save of a run fails, the run fails, even if `on_error` is `warn`.
    """

    every: int = pydantic.Field(default=1000, ge=1)
    """Steps between saves."""
    every_minutes: float | None = pydantic.Field(default=None, gt=0, le=525_600)
    """Minutes between saves. null: no limit."""
    keep_last: int = pydantic.Field(default=3, ge=1)
    """Number of newest checkpoints to keep."""
    keep_every: int | None = pydantic.Field(default=None, ge=1)
    """Also keep every checkpoint whose step is a multiple of this number."""
    keep_best: int = pydantic.Field(default=1, ge=0)
    """Number of best checkpoints to keep, by `evaluation.best_by` on the current validation
    data."""
    on_error: Literal["stop", "warn"] = "stop"
    """Response to a failed save, such as on a full disk: stop with exit code 1, or warn and
    continue."""


class BadStepsSection(Section):
    """Response to a step whose loss or gradient norm is not finite or spikes.

    A spike is more than 10 robust standard deviations above the median of the phase's last
    ``window`` steps. The robust standard deviation is 1.4826 × the median absolute deviation, and
    at least 5% of the median. After three skips within ``window`` steps, or three rollbacks to one
    checkpoint, the next bad step stops the run.
    """

    on_non_finite: Literal["skip", "rollback", "stop"] = "skip"
    """Response to NaN or infinity. `skip` omits the update of the step. `rollback` restores the
    last checkpoint and skips the data since then."""
    on_spike: Literal["ignore", "warn", "skip", "rollback", "stop"] = "warn"
    """Response to a spike."""
    window: int = pydantic.Field(default=128, ge=8)
    """Number of recent steps from which the limits are computed."""


class EmaSection(Section):
    """Exponential moving average of the parameters.

    After update n, ``average = d · average + (1 − d) · parameters`` in float32, where d is the
    smaller of `decay` and ``(1 + n) / (10 + n)``. The first n is 0. A step without an update leaves
    the average unchanged. The average takes 4 bytes per parameter, sharded like the parameters.
    Checkpoints include it. The option ``--ema`` of `evaluate`, `export` and other verbs selects it.

    Source: the argument `num_updates` of TensorFlow's `tf.train.ExponentialMovingAverage`.
    """

    decay: float = pydantic.Field(default=0.999, gt=0, lt=1)
    """Weight of the previous average, after warm-up. The average spans about ``1 / (1 − decay)``
    steps."""
    evaluate: bool = True
    """Whether evaluations also score the average, as `ema.mlm_loss`. This doubles their time."""


class WatchdogSection(Section):
    """Time limit of a step: ten times the median of recent steps, at least `floor_seconds`."""

    floor_seconds: float = pydantic.Field(default=120.0, gt=0)
    """Minimum of the limit, in seconds."""


class ProfileSection(Section):
    """Steps to trace, counted from 1 over the whole run. Avoid the first steps, which compile."""

    start: int = pydantic.Field(default=10, ge=1)
    """First step to trace."""
    steps: int = pydantic.Field(default=3, ge=1, le=100)
    """Number of steps to trace."""

    @property
    def last(self) -> int:
        """Last step to trace."""
        return self.start + self.steps - 1


class TrainSection(Section):
    """The run: phases, evaluation, checkpoints, reports."""

    phases: tuple[PhaseSection, ...] = pydantic.Field(min_length=1)
    """Consecutive phases, each with its own dataset, row length and batch size."""
    evaluation: EvaluationSection | None = EvaluationSection()
    """Evaluation on the validation split. null: none."""
    checkpoint: CheckpointSection = CheckpointSection()
    """When to save, and which checkpoints to keep."""
    ema: EmaSection | None = None
    """Moving average of the parameters, beside the parameters. null: none."""
    bad_steps: BadStepsSection = BadStepsSection()
    """Response to bad steps."""
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)
    """Steps between comparisons of the state's replicas. null: no comparisons."""
    log_every: int = pydantic.Field(default=10, ge=1)
    """Steps between reports of metrics."""
    trackers: tuple[TrackerName, ...] = ()
    """Destinations of metrics in addition to metrics.jsonl and TensorBoard."""
    watchdog: WatchdogSection | None = WatchdogSection()
    """Time limit after which a hanging run ends with exit code 43. null: no limit."""
    profile: ProfileSection | None = None
    """Steps to trace for TensorBoard. null: none."""

    @pydantic.model_validator(mode="after")
    def _held_out_is_named(self) -> TrainSection:
        if self.evaluation is None or self.evaluation.held_out:
            return self
        for at, phase in enumerate(self.phases):
            if phase.is_mixed:
                raise SettingError(
                    "evaluation.mixture",
                    f"missing, but phase {at} mixes datasets. Set it, or train.evaluation: null.",
                    place="evaluation.dataset",
                )
        if self.evaluation.at_most and len({phase.dataset_name for phase in self.phases}) > 1:
            raise SettingError(
                "evaluation.at_most_data",
                "missing, but at_most compares phases, whose datasets differ. Set it, or sets.",
                place="evaluation.dataset",
            )
        return self

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps in all phases."""
        return sum(phase.steps for phase in self.phases)

    @property
    def datasets(self) -> dict[str, str]:
        """Paths of all datasets, by key."""
        found = {
            phase.path_key(f"train.phases.{at}", path): path
            for at, phase in enumerate(self.phases)
            for path in phase.paths
        }
        if self.evaluation is not None:
            found |= self.evaluation.by_key
        return found

    @property
    def batch_sizes(self) -> dict[str, tuple[int, int]]:
        """(rows, number of microbatches) of each configured batch size, by key."""
        sizes = {
            f"train.phases.{index}.batch_size": (phase.batch_size, phase.accumulation)
            for index, phase in enumerate(self.phases)
        }
        sizes |= {
            f"train.phases.{index}.batch_ramp.{at}.batch_size": (
                stage.batch_size,
                phase.accumulation,
            )
            for index, phase in enumerate(self.phases)
            for at, stage in enumerate(phase.batch_ramp)
        }
        if self.evaluation is not None and self.evaluation.batch_size is not None:
            sizes["train.evaluation.batch_size"] = (self.evaluation.batch_size, 1)
        return sizes

    def evaluation_seed(self, seed: int) -> int:
        """Returns the seed of the masks in evaluations of a run with the seed `seed`."""
        own = self.evaluation.seed if self.evaluation else 0
        return seed if own is None else own

    def evaluation_rows(self, phase: PhaseSection) -> int:
        """Returns the rows per evaluation batch in a phase, over all devices and hosts.

        The default is the size of a microbatch, because training takes more memory than evaluation.
        """
        asked = self.evaluation and self.evaluation.batch_size
        return asked or phase.microbatch
