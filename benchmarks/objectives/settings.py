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
_FINETUNE: Final = (
    "finetune.optimizer.learning_rate=1e-3",
    "finetune.dropout=0.1",
    "finetune.max_length=64",
)
TASKS: Final = {
    "sst2": TaskSection(
        config="finetune/sst2",
        overrides=(*_FINETUNE, "finetune.task.train_limit=5000"),
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
    budgets: tuple[float, ...] = pydantic.Field(default=(8e12, 2e13), min_length=1)
    """Model FLOPs of a pretraining run. Every objective is trained once per budget. In `distilled`,
    the teacher's forward passes count, but the training of the teacher does not."""
    layers: int = pydantic.Field(default=2, ge=1)
    """Layers of all models but the student of `distilled`."""
    student_layers: int = pydantic.Field(default=1, ge=1)
    """Layers of the student, a divisor of `layers`. It starts from every k-th layer of its teacher,
    which is the `mlm` run of the largest budget and the same seed."""
    hidden_size: int = pydantic.Field(default=128, ge=1)
    """Width of all models. The FFN is 4 times as wide."""
    heads: int = pydantic.Field(default=2, ge=1)
    """Attention heads per layer."""
    embedding_size: int = pydantic.Field(default=64, ge=1)
    """Width of the embeddings of ELECTRA and ALBERT."""
    vocab_size: int = pydantic.Field(default=4096, ge=100)
    """Ids of the WordPiece tokenizer, which all models share."""
    layout: Literal["sentences", "prose"] = "prose"
    """Layout of the text, as in `examples.layout`."""
    validation_fraction: float = pydantic.Field(default=0.02, gt=0, le=0.5)
    """Share of held-out documents."""
    dupe_factor: int = pydantic.Field(default=5, ge=1)
    """How many times each document is paired for `mlm+nsp` and `albert`."""
    seq_length: int = pydantic.Field(default=64, ge=8)
    """Tokens per row."""
    batch_size: int = pydantic.Field(default=16, ge=1)
    """Rows per step. Few, because a small budget needs many steps."""
    learning_rate: float = pydantic.Field(default=2e-3, gt=0)
    """Peak learning rate of pretraining."""
    learning_rates: dict[Name, float] = pydantic.Field(default={"electra": 5e-4})
    """Peak learning rates of objectives that differ from `learning_rate`. With 2e-3, ELECTRA's
    model learns only the share of replaced tokens, and fine-tuning from it fails."""
    initializer_range: float = pydantic.Field(default=0.1, gt=0)
    """Standard deviation of initial parameters. With 0.05, MLM of 1.6e13 FLOPs ended at 6.07 nats
    instead of 4.78, with 0.2 no run left the entropy of single words."""
    tasks: dict[str, TaskSection] = pydantic.Field(default=TASKS, min_length=1)
    """Fine-tuning tasks by name."""


def load_study(path: Path | None) -> StudySection:
    """Returns the settings of a YAML file, or the defaults. Raises UserError if one is wrong."""
    if path is None:
        return StudySection()
    values: Any = read_yaml(path)
    return validate(StudySection, values, source=str(path))
