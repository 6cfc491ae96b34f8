"""Where a run's examples come from: a dataset of ours, or TFRecords of google-research/bert."""

import dataclasses
from typing import Final, TypeAlias

from bert_jax.data.dataset.cache import DatasetCache
from bert_jax.data.dataset.reader import Dataset, open_dataset
from bert_jax.data.google_bert.reader import (
    GoogleBertDataset,
    find_splits,
    is_google_bert,
    open_google_bert,
)
from bert_jax.data.rows.static_masks import StaticMaskTransform
from bert_jax.errors import UserError
from bert_jax.objectives.registry import check_pairing
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.task import Objective, RowTransform
from bert_jax.text import Tokenizer

TRAIN: Final = "train"
VALIDATION: Final = "validation"


@dataclasses.dataclass(frozen=True)
class OwnSource:
    """One split of examples that fit the objective and the tokenizer, and how to make rows."""

    dataset: Dataset

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that there are, this one among them."""
        return tuple(self.dataset.provenance.splits)

    @property
    def unigram_entropy(self) -> float:
        """Of the text before masking, in nats per token."""
        return self.dataset.provenance.corpus.unigram_entropy

    def features(
        self, task: Objective, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> RowTransform:
        """Returns the row transform; takes what `Objective.features` takes."""
        return task.features(
            seq_length=seq_length, max_predictions=max_predictions, evaluation=evaluation
        )


@dataclasses.dataclass(frozen=True)
class GoogleBertSource:
    """The same of TFRecords."""

    dataset: GoogleBertDataset
    tokenizer: Tokenizer

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that there are, this one among them."""
        return tuple(find_splits(self.dataset.directory))

    @property
    def unigram_entropy(self) -> float:
        """Of the text before masking, in nats per token."""
        return self.dataset.summary.unigram_entropy

    def features(
        self, task: Objective, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> StaticMaskTransform:
        """Returns the row transform; the masks are those of the file, in evaluation too."""
        del task, evaluation
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


ExampleSource: TypeAlias = OwnSource | GoogleBertSource


def open_source(
    path: str,
    split: str,
    *,
    objective: ObjectiveSection,
    tokenizer: Tokenizer,
    cache: DatasetCache,
    key: str,
) -> ExampleSource:
    """Opens one split and checks that it fits.

    The path is a dataset directory, or TFRecords: a file, a glob or a directory. `split` is "train"
    or "validation"; `key` named the path, for messages. Raises UserError: nothing there, damaged,
    made for another objective or with another vocabulary.
    """
    if is_google_bert(path):
        return GoogleBertSource(
            _check_google_bert(open_google_bert(path, split), objective, tokenizer, key=key),
            tokenizer,
        )
    dataset = open_dataset(cache.local(path), split)
    dataset.provenance.require_tokenizer(tokenizer.hash, place=f"{key}: {path}")
    check_pairing(objective, dataset, key=key)
    return OwnSource(dataset)


def _check_google_bert(
    dataset: GoogleBertDataset, objective: ObjectiveSection, tokenizer: Tokenizer, *, key: str
) -> GoogleBertDataset:
    """Returns the dataset if its rows are made for the objective and look like the tokenizer's."""
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
    return dataset
