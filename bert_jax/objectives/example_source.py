"""The examples of a run: a dataset of ours, or TFRecords of google-research/bert."""

import dataclasses
from typing import Final

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.dataset.reader import Dataset, open_dataset
from bert_jax.data.google_bert.reader import (
    GoogleBertDataset,
    find_splits,
    is_google_bert,
    open_google_bert,
)
from bert_jax.data.rows.masking_transform import StaticMaskTransform
from bert_jax.errors import UserError
from bert_jax.objectives.registry import check_pairing
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.task import Objective, RowTransform
from bert_jax.text import Tokenizer

TRAIN: Final = "train"
VALIDATION: Final = "validation"


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """One split of examples that fit the objective and the tokenizer."""

    dataset: Dataset | GoogleBertDataset
    tokenizer: Tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits, this one among them."""
        if isinstance(self.dataset, Dataset):
            return tuple(self.dataset.provenance.splits)
        return tuple(find_splits(self.dataset.directory))

    @property
    def unigram_entropy(self) -> float:
        """Entropy of the text before masking, in nats per token."""
        if isinstance(self.dataset, Dataset):
            return self.dataset.provenance.corpus.unigram_entropy
        return self.dataset.summary.unigram_entropy

    def features(
        self, task: Objective, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> RowTransform:
        """Returns the row transform, see `Objective.features`; TFRecords have masks of their own.

        Raises UserError: an example has more predictions than `max_predictions`.
        """
        if isinstance(self.dataset, Dataset):
            return task.features(
                seq_length=seq_length, max_predictions=max_predictions, evaluation=evaluation
            )
        summary = self.dataset.summary
        slots = max_predictions or summary.slots
        if slots < summary.most_predictions:
            raise UserError(
                f"max_predictions: found {slots}, but an example of {self.dataset.directory} has "
                f"{summary.most_predictions} predictions; allowed: {summary.most_predictions} or "
                "more"
            )
        return StaticMaskTransform(
            seq_length=seq_length,
            max_predictions=slots,
            vocab_size=self.tokenizer.vocab_size,
            pad_id=self.tokenizer.special.pad,
        )


def open_source(
    path: str,
    split: str,
    *,
    objective: ObjectiveSection,
    tokenizer: Tokenizer,
    cache: DatasetCache,
    key: str,
) -> ExampleSource:
    """Opens one split, "train" or "validation", and checks that it fits.

    The path is a dataset directory, or TFRecords: a file, a glob or a directory; `key` named it.
    Raises UserError: nothing there, damaged, made for another objective or with another vocabulary.
    """
    if is_google_bert(path):
        dataset = open_google_bert(path, split)
        _check_google_bert(dataset, objective, tokenizer, key=key)
    else:
        dataset = open_dataset(cache.local(path), split)
        dataset.provenance.require_tokenizer(tokenizer.hash, place=f"{key}: {path}")
        check_pairing(objective, dataset, key=key)
    return ExampleSource(dataset, tokenizer)


def _check_google_bert(
    dataset: GoogleBertDataset, objective: ObjectiveSection, tokenizer: Tokenizer, *, key: str
) -> None:
    """Refuses rows that are not made for the objective, or not with the tokenizer's ids."""
    if objective.name != "bert":
        raise UserError(
            f"{key}: {dataset.directory} holds TFRecords with next sentence labels, but "
            f"objective.name {objective.name} does not learn from them; allowed: objective.name: "
            "bert"
        )
    highest, special = dataset.summary.highest_id, tokenizer.special
    if highest >= tokenizer.vocab_size:
        raise UserError(
            f"{key}: {dataset.directory} has the token id {highest}, allowed: 0 to "
            f"{tokenizer.vocab_size - 1}; it was made with another vocabulary than the run's"
        )
    ends = dataset[0].original()[[0, -1]].tolist()
    if ends != [special.cls, special.sep]:
        raise UserError(
            f"{key}: {dataset.directory} begins and ends an example with the ids {ends}, allowed: "
            f"[{special.cls}, {special.sep}], [CLS] and [SEP]; it was made with another vocabulary "
            "than the run's"
        )
