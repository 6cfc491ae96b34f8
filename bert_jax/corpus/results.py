"""Columns of results: labels, scores, vectors or tags, from the outputs of a model."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from bert_jax.corpus.section import ScoreSection
from bert_jax.data.rows.collate import Assembled, assemble, assemble_longest_first
from bert_jax.inference.batches import BatchShape
from bert_jax.inference.comparison import (
    SparseComparison,
    SparseVector,
    TokenComparison,
    sparse_rows,
)
from bert_jax.model.section import HeadsSection, ProblemName
from bert_jax.model.text_head import CrossEncoderSection, SparseHeadSection, TokenVectorsSection
from bert_jax.tasks.rows import RowTask
from bert_jax.text.tokenizer import Tokenizer

LABEL: Final = "label"
PROBABILITIES: Final = "probabilities"
SCORE: Final = "score"
VECTOR: Final = "vector"
PIECES: Final = "pieces"
WEIGHTS: Final = "weights"
VECTORS: Final = "vectors"
TOKENS: Final = "tokens"
TAGS: Final = "tags"


class Results(abc.ABC):
    """The columns of one kind of results.

    Attributes:
        schema: names and types of the columns.
    """

    schema: pa.Schema
    join: Callable[..., Assembled] = staticmethod(assemble)  # of the tokens of a text or a pair

    @abc.abstractmethod
    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Returns the columns of rows from the model's outputs, float32 [rows, width]."""

    def kept(self, output: np.ndarray) -> Any:
        """Returns what is kept of the output of a row until its window is complete."""
        return output

    def of_texts(self, outputs: Sequence[Any], ids: Iterable[Sequence[int]]) -> list[pa.Array]:
        """Returns the columns of texts, from what is kept of their outputs, and their pieces."""
        del ids
        width = outputs[0].shape[-1] if outputs else 0
        return self.columns(np.array(outputs, np.float32).reshape(len(outputs), width))


class Vectors(Results):
    """A vector per text."""

    def __init__(self, width: int) -> None:
        self.schema = pa.schema([(VECTOR, pa.list_(pa.float32(), width))])

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Returns the vectors."""
        flat = pa.array(np.ascontiguousarray(outputs).ravel(), pa.float32())
        return [pa.FixedSizeListArray.from_arrays(flat, type=self.schema.field(0).type)]


class PieceWeights(Results):
    """The pieces of a sparse vector and their weights, largest first."""

    def __init__(self, head: SparseHeadSection, names: np.ndarray) -> None:
        """`names` are the names of all pieces, see `piece_names`."""
        self._comparison, self._names = SparseComparison(head), pa.array(names)
        self.schema = pa.schema(
            [(PIECES, pa.list_(pa.string())), (WEIGHTS, pa.list_(pa.float32()))]
        )

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Returns pieces and weights."""
        return self.of_texts([self.kept(output) for output in outputs], ())

    def kept(self, output: np.ndarray) -> SparseVector:
        """Returns the weights above 0."""
        return self._comparison.kept(output, (), query=False)

    def of_texts(
        self, outputs: Sequence[SparseVector], ids: Iterable[Sequence[int]]
    ) -> list[pa.Array]:
        """Returns pieces and weights."""
        del ids
        rows: Any = sparse_rows(outputs, width=len(self._names))
        text = np.repeat(np.arange(len(outputs)), np.diff(rows.indptr))
        order = np.lexsort((-rows.data, text))
        ends = pa.array(rows.indptr, pa.int32())
        return [
            pa.ListArray.from_arrays(ends, self._names.take(pa.array(rows.indices[order]))),
            pa.ListArray.from_arrays(ends, pa.array(rows.data[order])),
        ]


class TokenVectors(Results):
    """A list of vectors per text, one for each token."""

    def __init__(self, head: TokenVectorsSection, width: int, *, query: bool) -> None:
        """`query` is whether the texts are queries."""
        self._comparison, self._query = TokenComparison(head), query
        self.schema = pa.schema([(VECTORS, pa.list_(pa.list_(pa.float32(), width)))])

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Is not used: texts have different numbers of tokens, see `of_texts`."""
        raise NotImplementedError

    def of_texts(
        self, outputs: Sequence[np.ndarray], ids: Iterable[Sequence[int]]
    ) -> list[pa.Array]:
        """Returns the vectors of texts from their outputs, float32 [length, width], and pieces."""
        texts = zip(outputs, ids, strict=True)
        kept = [self._comparison.kept(*text, query=self._query) for text in texts]
        ends = np.cumsum([0, *map(len, kept)]).astype(np.int32)
        inner = self.schema.field(0).type.value_type
        flat = np.concatenate([np.zeros((0, inner.list_size), np.float32), *kept]).ravel()
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=inner)
        return [pa.ListArray.from_arrays(pa.array(ends), vectors)]


class Scores(Results):
    """The number that a regression or a cross-encoder predicts."""

    def __init__(self, cross_encoder: CrossEncoderSection | None = None) -> None:
        self._cross_encoder = cross_encoder
        if cross_encoder is not None:
            self.join = assemble_longest_first
        self.schema = pa.schema([(SCORE, pa.float32())])

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Returns the scores."""
        found = outputs[:, 0]
        return [pa.array(self._cross_encoder.score(found) if self._cross_encoder else found)]


class Labels(Results):
    """The most probable label, or all labels above a threshold, and all probabilities."""

    def __init__(
        self, names: Sequence[str], *, integers: bool, threshold: float | None = None
    ) -> None:
        """Labels are integers if `integers`. With a `threshold`, a text may have several labels."""
        self._threshold = threshold
        self._values = pa.array([int(name) for name in names] if integers else list(names))
        label: Any = self._values.type if threshold is None else pa.list_(self._values.type)
        probabilities = pa.struct([(name, pa.float32()) for name in names])
        self.schema = pa.schema([(LABEL, label), (PROBABILITIES, probabilities)])

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Returns labels and probabilities."""
        from scipy import special  # here, because it takes 0.1 s

        logits = outputs.astype(np.float64)
        if self._threshold is None:
            found = special.softmax(logits, axis=-1)
            labels = self._values.take(pa.array(found.argmax(axis=-1)))
        else:
            found = special.expit(logits)
            rows, chosen = np.nonzero(found >= self._threshold)
            ends = np.searchsorted(rows, np.arange(len(found) + 1)).astype(np.int32)
            flat = self._values.take(pa.array(chosen))
            labels = pa.ListArray.from_arrays(pa.array(ends), flat)
        kind = self.schema.field(PROBABILITIES).type
        columns = [pa.array(found[:, at].astype(np.float32)) for at in range(found.shape[1])]
        return [labels, pa.StructArray.from_arrays(columns, fields=[*kind])]


class Tags(Results):
    """The words of a text and a tag for each. The rows are records of the task."""

    def __init__(self) -> None:
        words = pa.list_(pa.string())
        self.schema = pa.schema([(TOKENS, words), (TAGS, words)])

    def columns(self, outputs: np.ndarray) -> list[pa.Array]:
        """Is not used: tags come from records, see `of_records`."""
        raise NotImplementedError

    def of_records(self, records: Sequence[dict[str, Any]]) -> list[pa.Array]:
        """Returns the columns of the records of `bert-jax predict`."""
        kinds = self.schema.types
        tokens = [record["tokens"] for record in records]
        tags = [list(map(str, record["prediction"])) for record in records]
        return [pa.array(tokens, kinds[0]), pa.array(tags, kinds[1])]


def results_of_head(heads: HeadsSection, *, threshold: float) -> Results:
    """Returns the results of a head of sequence or token classification.

    `threshold` is the least probability of a label if a text may have several.
    """
    if heads.task == "token_classification":
        return Tags()
    # Hugging Face's rule for a checkpoint without `problem_type`.
    guessed: ProblemName = "regression" if len(heads.labels) == 1 else "single_label"
    problem = heads.problem or guessed
    if problem == "regression":
        return Scores(heads.cross_encoder)
    several = threshold if problem == "multi_label" else None
    return Labels(heads.labels, integers=heads.integer_labels, threshold=several)


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
