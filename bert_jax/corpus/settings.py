"""The settings that decide the results of a part, besides the model's parameters."""

import dataclasses
from typing import NamedTuple

from bert_jax.corpus.results import Results
from bert_jax.corpus.section import ScoreSection
from bert_jax.inference.batches import BatchShape
from bert_jax.tasks.rows import RowTask
from bert_jax.text.tokenizer import Tokenizer


class WindowLimits(NamedTuple):
    """Limits of the rows that are encoded and sorted together."""

    rows: int
    characters: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartSettings:
    """The settings of a job that its parts need. Can be pickled."""

    section: ScoreSection
    tokenizer: Tokenizer
    results: Results
    task: RowTask | None  # task of a head that tags words
    prefix: str  # text before every text
    max_length: int
    shapes: tuple[BatchShape, ...]  # shapes of batches over all devices of a process
    limits: WindowLimits
