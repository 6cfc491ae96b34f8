"""The settings of the comparison: sizes, FLOPs, seeds and fine-tuning."""

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pydantic

from benchmarks.fine_tuned import TaskSection
from bert_jax.files.yaml_file import read_yaml
from bert_jax.section import Section
from bert_jax.validation import validate

Name: TypeAlias = Literal["mlm+nsp", "mlm", "electra", "albert", "causal+mlm", "distilled"]
NAMES: Final[tuple[Name, ...]] = (
    *("mlm+nsp", "mlm", "electra"),
    *("albert", "causal+mlm", "distilled"),
)

# The models are small, so their learning rate is higher than BERT-base's. Pretraining has no
# dropout, because it is short.
_FINETUNE: Final = ("finetune.optimizer.learning_rate=2e-4", "finetune.dropout=0.1")
TASKS: Final = {
    "sst2": TaskSection(
        config="finetune/sst2",
        overrides=(*_FINETUNE, "finetune.task.train_limit=3000"),
        data="SST-2",
        metric="accuracy",
    ),
    "mrpc": TaskSection(
        config="finetune/mrpc", overrides=_FINETUNE, data="MRPC", metric="accuracy"
    ),
}


class StudySection(Section):
    """What is compared. By estimate, the defaults take less than four hours of two idle cores."""

    objectives: tuple[Name, ...] = NAMES
    """The objectives to compare."""
    seeds: tuple[int, ...] = pydantic.Field(default=(1, 2, 3), min_length=1)
    """Seeds of pretraining and of fine-tuning."""
    budgets: tuple[float, ...] = pydantic.Field(default=(1.2e13, 4e13), min_length=1)
    """Model FLOPs of a pretraining run. Every objective is trained once per budget."""
    teacher_flops: float = pydantic.Field(default=1.2e14, gt=0)
    """Model FLOPs of the teacher of `distilled`, which is trained once. The budgets do not include
    them; they include the teacher's forward passes during distillation."""
    teacher_layers: int = pydantic.Field(default=8, ge=1)
    """Layers of the teacher, a multiple of `layers`. The student starts from every k-th layer."""
    layers: int = pydantic.Field(default=4, ge=1)
    """Layers of all other models."""
    hidden_size: int = pydantic.Field(default=256, ge=1)
    """Width of all models. The FFN is 4 times as wide."""
    heads: int = pydantic.Field(default=4, ge=1)
    """Attention heads per layer."""
    embedding_size: int = pydantic.Field(default=128, ge=1)
    """Width of the embeddings of ELECTRA and ALBERT."""
    vocab_size: int = pydantic.Field(default=8000, ge=100)
    """Ids of the WordPiece tokenizer, which all models share."""
    layout: Literal["sentences", "prose"] = "prose"
    """Layout of the text, as in `examples.layout`."""
    validation_fraction: float = pydantic.Field(default=0.03, gt=0, le=0.5)
    """Share of held-out documents."""
    dupe_factor: int = pydantic.Field(default=5, ge=1)
    """How many times each document is paired for `mlm+nsp` and `albert`."""
    seq_length: int = pydantic.Field(default=128, ge=8)
    """Tokens per row."""
    batch_size: int = pydantic.Field(default=8, ge=1)
    """Rows per step. Few, because a small budget needs many steps."""
    learning_rate: float = pydantic.Field(default=1e-3, gt=0)
    """Peak learning rate of pretraining, the same for all objectives."""
    initializer_range: float = pydantic.Field(default=0.04, gt=0)
    """Standard deviation of initial parameters."""
    tasks: dict[str, TaskSection] = pydantic.Field(default=TASKS, min_length=1)
    """Fine-tuning tasks by name."""


def load_study(path: Path | None) -> StudySection:
    """Returns the settings of a YAML file, or the defaults. Raises UserError if one is wrong."""
    if path is None:
        return StudySection()
    values: Any = read_yaml(path)
    return validate(StudySection, values, source=str(path))
