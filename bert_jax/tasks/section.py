"""The settings of a fine-tuning run, and the registry of task families."""

import dataclasses
from typing import Any, Literal, Self, TypeAlias

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.config import Dtype, Execution
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.runs.settings import RunSettings
from bert_jax.section import ModelPathText, Section
from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.glue.family import GlueSection
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.sweep.grid import SweepSection
from bert_jax.tasks.table import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection
from bert_jax.train.sections import BadStepsSection, TrackerName, WatchdogSection

# The task families. A new family needs its section here.
TaskSection: TypeAlias = (
    GlueSection | SquadSection | TokenClassificationSection | MultipleChoiceSection | TableSection
)


class FinetuneSection(Section):
    """The model, the task and the training. Defaults are the middle values of the BERT paper."""

    init_from: ModelPathText
    """A run directory of `pretrain`, `import` or `finetune`; a Hugging Face or google-research/bert
    directory; or a model on a hub: `google-bert/bert-base-uncased`, with `@` a revision."""
    task: TaskSection = pydantic.Field(discriminator="kind")
    """The task and its files; `kind` selects the keys."""
    split_seed: int = pydantic.Field(default=0, ge=0)
    """Seed for splitting off a dev set."""
    max_length: int = pydantic.Field(default=128, ge=8)
    """Tokens in a row. Longer texts are truncated; SQuAD and token classification split them into
    windows."""
    batch_size: int = pydantic.Field(default=32, ge=1)
    """Rows of one step."""
    accumulation: int = pydantic.Field(default=1, ge=1)
    """Number of microbatches in a batch. Their gradients are summed before the update. Dev batches
    have the size of a microbatch."""
    epochs: int = pydantic.Field(default=3, ge=1)
    """Passes over the training data."""
    optimizer: FinetuneOptimizerSection = FinetuneOptimizerSection()
    """The optimizer, with learning rates per layer and frozen layers."""
    dtype: Dtype | None = None
    """Dtype of activations; by default the checkpoint's."""
    kernels: Literal["auto", "xla"] = "auto"
    """Kernels of attention, LayerNorm and GELU on a TPU. `auto`: the kernels of pretraining, unless
    the checkpoint's configuration sets `xla`. `xla`: no kernels."""
    dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Dropout of hidden states and attention; by default the checkpoint's."""
    evaluations_per_epoch: int = pydantic.Field(default=1, ge=1)
    """Number of dev evaluations per epoch. The best evaluated checkpoint is the result."""
    patience: int | None = pydantic.Field(default=None, ge=1)
    """Number of evaluations without a better score after which the run ends. By default, the run
    trains all epochs."""
    report_sentence: str | None = pydantic.Field(default=None, min_length=1)
    """Sentence whose attention the report shows. By default, the first dev row that fits a page."""
    sweep: SweepSection | None = None
    """Several runs as one job."""
    bad_steps: BadStepsSection = BadStepsSection()
    """The reaction to bad steps."""
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)
    """Steps between comparisons of the state's replicas. null: no comparisons."""
    watchdog: WatchdogSection | None = WatchdogSection()
    """The time limit of a step. null: no limit."""
    log_every: int = pydantic.Field(default=20, ge=1)
    """Steps between lines of metrics."""
    example_log: bool = False
    """Log the rows of each step in `examples/` of the run: about 7 bytes a row."""
    trackers: tuple[TrackerName, ...] = ()
    """Trackers of metrics besides metrics.jsonl and TensorBoard."""

    def check_positions(self, positions: int) -> None:
        """Raises UserError if `max_length` exceeds the number of positions of a model."""
        if self.max_length > positions:
            raise UserError(
                "finetune.max_length",
                "found {found}, but the model has {positions} positions. Use at most {positions}.",
                place="finetune.max_length",
                found=self.max_length,
                positions=positions,
            )

    @property
    def microbatch(self) -> int:
        """Number of rows in a microbatch. Predictions have the same batch size by default."""
        return self.batch_size // self.accumulation

    def executed(self, execution: Execution) -> Execution:
        """Returns the execution settings of fine-tuning, given the settings of the origin."""
        changed = {} if self.dtype is None else {"dtype": self.dtype}
        if self.kernels == "xla":
            changed |= dict.fromkeys(("attention", "norm", "ffn"), "xla")
        return execution.elsewhere().model_copy(update=changed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RunSettings):
    """The settings of `finetune`."""

    finetune: FinetuneSection
    origin: str  # the run directory that `finetune.init_from` names

    def with_finetune(self, **changed: Any) -> Self:
        """Returns these settings with fields of the `finetune` section changed."""
        return dataclasses.replace(self, finetune=self.finetune.model_copy(update=changed))

    def to_config(self) -> dict[str, Any]:
        """Returns the configuration of these settings."""
        return {**self.config, **self.decisive(), "run_dir": self.run_dir}

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that determine the results, as plain values."""
        return {"seed": self.seed, "finetune": self.finetune.model_dump(mode="json")}
