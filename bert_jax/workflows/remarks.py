"""Remarks about settings of fine-tuning that are legal, but probably a mistake."""

from collections.abc import Iterator
from typing import Final

from bert_jax.errors import counted
from bert_jax.tasks.family import Family
from bert_jax.tasks.section import FinetuneSection

_MANY_EPOCHS: Final = 40  # more passes over the data than in BERT's pretraining


def remarks(section: FinetuneSection, family: Family) -> Iterator[str]:
    """Yields a line for each setting that has no effect, or an effect that nobody wants."""
    train, task = family.splits["train"], section.task
    rows = len(train.lengths)
    if section.batch_size > rows:
        yield (
            f"finetune.batch_size: {section.batch_size} is more than the {rows:,} training rows: "
            "each step has all rows, and an epoch is one step"
        )
    if section.epochs > _MANY_EPOCHS:
        yield (
            f"finetune.epochs: {section.epochs:,} passes over {counted(rows, 'training row')}, "
            "usual are 2 to 10. The model will remember the rows instead of learning from them"
        )
    evaluations = section.epochs * section.evaluations_per_epoch
    if section.patience is not None and section.patience >= evaluations:
        yield (
            f"finetune.patience: {section.patience} has no effect, because the run has "
            f"{counted(evaluations, 'evaluation')}"
        )
    if getattr(task, "dev", None) is not None:
        of_split = {"finetune.split_seed": section, "finetune.task.dev_fraction": task}
        for name, owner in of_split.items():
            field = type(owner).model_fields.get(name.rpartition(".")[2])
            if field is not None and getattr(owner, name.rpartition(".")[2]) != field.default:
                yield f"{name}: has no effect, because finetune.task.dev is set"
    for name in family.dev:
        if family.splits[name].fingerprint == train.fingerprint:
            yield (
                f"{name}: the same rows as in the training set. Its scores show what the model "
                "remembers. Use other rows"
            )
