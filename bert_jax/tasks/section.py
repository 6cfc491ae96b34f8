"""Settings of a fine-tuning run, and the registry of task families."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal, Self, TypeAlias

import pydantic

from bert_jax.errors import SettingError, UserError, one_of
from bert_jax.model.section import Dtype, Execution
from bert_jax.optim.sections import FinetuneOptimizerSection
from bert_jax.runs.settings import RunSettings
from bert_jax.section import ModelPathText, Section, refuse_ignored, sections_of
from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.embedding.section import EmbeddingSection
from bert_jax.tasks.family import FamilySection, FamilyT
from bert_jax.tasks.glue.family import GlueSection
from bert_jax.tasks.late_interaction.section import LateInteractionSection
from bert_jax.tasks.rerank.section import RerankSection
from bert_jax.tasks.sparse.section import SparseSection
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.sweep_grid import SweepSection
from bert_jax.tasks.table import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection
from bert_jax.train.sections import BadStepsSection, TrackerName, WatchdogSection

# To register a task family, add its section here.
TaskSection: TypeAlias = (
    GlueSection
    | SquadSection
    | TokenClassificationSection
    | MultipleChoiceSection
    | TableSection
    | EmbeddingSection
    | SparseSection
    | RerankSection
    | LateInteractionSection
)
FAMILIES: Final[Mapping[str, type[FamilySection]]] = {
    section.model_fields["kind"].default: section
    for section in sections_of(TaskSection)
    if issubclass(section, FamilySection)
}


def require_base(task: TaskSection, base: type[FamilyT], *, place: str) -> FamilyT:
    """Returns the task. Raises UserError if an argument needs tasks of another base class."""
    if not isinstance(task, base):
        allowed = one_of(kind for kind, each in FAMILIES.items() if issubclass(each, base))
        raise UserError(
            "finetune.task_without_table", f"not with {task.kind}, only with {allowed}", place=place
        )
    return task


class FinetuneSection(Section):
    """Settings of fine-tuning. The defaults are the middle values of the BERT paper's grid."""

    init_from: ModelPathText
    """A run directory of `pretrain`, `import` or `finetune`, a Hugging Face or google-research/bert
    directory, or a hub model such as `google-bert/bert-base-uncased` (append `@REVISION` to pin
    it)."""
    task: TaskSection = pydantic.Field(discriminator="kind")
    """The task and its files; `kind` selects the keys."""
    distill_from: ModelPathText | None = None
    """A teacher: a model that was fine-tuned on the same task with the same tokenizer, named like
    `init_from`. The model learns its predictions and the labels."""
    distill_temperature: float = pydantic.Field(default=2.0, gt=0)
    """Temperature of both softmaxes when predictions are compared."""
    distill_weight: float = pydantic.Field(default=0.5, ge=0, le=1)
    """Weight of the teacher's predictions in the loss. The labels have 1 minus this weight."""
    split_seed: int = pydantic.Field(default=0, ge=0)
    """Seed for holding out a dev set."""
    max_length: int = pydantic.Field(default=128, ge=8)
    """Maximum number of tokens in a row. Longer texts are truncated, or split into windows (SQuAD
    and token classification)."""
    batch_size: int = pydantic.Field(default=32, ge=1)
    """Number of rows in a step."""
    accumulation: int = pydantic.Field(default=1, ge=1)
    """Number of microbatches in a batch. Their gradients are summed before the update. Dev batches
    are as large as a microbatch. The task `embedding`, for example, compares all texts of a batch
    in spite of it: the backward pass encodes each microbatch again (GradCache, arXiv
    2101.06983)."""
    epochs: int = pydantic.Field(default=3, ge=1)
    """Number of passes over the training data."""
    optimizer: FinetuneOptimizerSection = FinetuneOptimizerSection()
    """The optimizer, with learning rates per layer and frozen layers."""
    dtype: Dtype | None = None
    """Dtype of activations. By default, the checkpoint's."""
    kernels: Literal["auto", "xla"] = "auto"
    """Whether attention, LayerNorm and GELU use kernels. GPUs have one for attention. `auto`: as in
    pretraining, unless the checkpoint's configuration sets `xla`. `xla`: plain JAX."""
    dropout: float | None = pydantic.Field(default=None, ge=0, lt=1)
    """Dropout rate of hidden states and attention. By default, the checkpoint's."""
    evaluations_per_epoch: int = pydantic.Field(default=1, ge=1)
    """Number of dev evaluations per epoch. The run returns the checkpoint with the best score."""
    patience: int | None = pydantic.Field(default=None, ge=1)
    """Stop after this number of evaluations without a better score. By default, train all
    epochs."""
    report_sentence: str | None = pydantic.Field(default=None, min_length=1)
    """Sentence for the attention maps in the report. By default, a short dev row."""
    sweep: SweepSection | None = None
    """Trains several runs as one job."""
    bad_steps: BadStepsSection = BadStepsSection()
    """How to handle bad steps."""
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)
    """Number of steps between comparisons of the replicas of the train state. null: never."""
    watchdog: WatchdogSection | None = WatchdogSection()
    """Time limit of a step. null: no limit."""
    log_every: int = pydantic.Field(default=20, ge=1)
    """Number of steps between logged metrics. Metrics are logged at least ten times in a run."""
    trackers: tuple[TrackerName, ...] = ()
    """Trackers of metrics besides metrics.jsonl and TensorBoard."""

    @pydantic.model_validator(mode="after")
    def _with_negatives(self) -> Self:
        if self.task.compares_rows and self.batch_size < 2:
            raise SettingError.wrong(
                "embedding.batch_size", self.batch_size, "2 or more to compare", place="batch_size"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _distillation(self) -> Self:
        if self.distill_from is None:
            names = ("distill_temperature", "distill_weight")
            refuse_ignored(self, *names, allowed="distill_from")
        elif not self.task.learns_labels:
            raise SettingError(
                "finetune.distill_embedding", f"{self.task.kind} has no label", place="distill_from"
            )
        return self

    def check_positions(self, positions: int) -> None:
        """Raises UserError if `max_length` exceeds the number of positions of a model."""
        if self.max_length > positions:
            raise UserError(
                "finetune.max_length",
                f"found {self.max_length}, allowed: at most the model's {positions} positions",
                place="finetune.max_length",
            )

    @property
    def microbatch(self) -> int:
        """Number of rows in a microbatch. Also the default batch size of predictions."""
        return self.batch_size // self.accumulation

    def executed(self, execution: Execution) -> Execution:
        """Applies `dtype` and `kernels` to the checkpoint's execution settings."""
        changed = {} if self.dtype is None else {"dtype": self.dtype}
        if self.kernels == "xla":
            changed |= dict.fromkeys(("attention", "norm", "ffn"), "xla")
        return execution.elsewhere().model_copy(update=changed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSettings(RunSettings):
    """The settings of `finetune`."""

    finetune: FinetuneSection
    origin: str  # the run directory that `finetune.init_from` names
    teacher: str | None = None  # the run directory that `finetune.distill_from` names

    def with_finetune(self, **changed: Any) -> Self:
        """Returns a copy with changed fields of the `finetune` section."""
        return dataclasses.replace(self, finetune=self.finetune.model_copy(update=changed))

    def to_config(self) -> dict[str, Any]:
        """Returns the configuration to store in the run directory."""
        return {**self.config, **self.decisive(), "run_dir": self.run_dir}

    def decisive(self) -> dict[str, Any]:
        """Returns the settings that determine the results, as plain values."""
        return {"seed": self.seed, "finetune": self.finetune.model_dump(mode="json")}
