"""The task family of sentence embeddings: its settings, and its task in the train loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pydantic

from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection
from bert_jax.section import refuse_ignored
from bert_jax.tasks.family import ViewOfSplit
from bert_jax.tasks.search.tuples import TeacherColumns
from bert_jax.tasks.search.vector_section import VectorLossSection, VectorSearchSection
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.tasks.embedding.task import EmbeddingTask

SCORED: Final = ("cosent", "cosine")  # losses that compare cosines with scores


class EmbeddingLossSection(VectorLossSection):
    """The loss. Its negatives are all other texts of the global batch."""

    kind: Literal["info_nce", "cosent", "cosine", "simcse", "margin_mse", "kl", "mse"] = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. `simcse`: `info_nce` for single texts, encoded twice with different
    dropout (arXiv 2104.08821). `cosent`: for scored pairs; a higher score needs a higher cosine.
    `cosine`: for scored pairs; squared difference of cosine and score. Losses that learn from a
    teacher: `margin_mse`, squared difference of margins and the teacher's margins; a margin is the
    similarity of the positive minus that of a negative (arXiv 2010.02666). `kl`, divergence of the
    softmax of similarities from that of the teacher's scores (arXiv 2010.11386). `mse`, for single
    texts: mean squared difference of the numbers of vectors (arXiv 2004.09813)."""
    temperature: float = pydantic.Field(default=0.05, gt=0)
    """Divisor of the similarities. Not used by `cosine`, `margin_mse` and `mse`."""
    learn_temperature: bool = False
    """Whether the temperature is trained, starting from `temperature`. For `info_nce` and
    `simcse`."""
    symmetric: bool = False
    """Whether positives also choose their anchors. For `info_nce` and `simcse`."""
    matryoshka: tuple[pydantic.PositiveInt, ...] = ()
    """Widths at which vectors are cut off, such as [384, 128, 32]. The loss is the sum over these
    widths (arXiv 2205.13147). By default, the loss of whole vectors."""

    @pydantic.model_validator(mode="after")
    def _only_used(self) -> Self:
        if self.kind not in ("info_nce", "simcse"):
            refuse_ignored(self, "learn_temperature", "symmetric", allowed="info_nce, simcse")
        if self.kind == "mse":
            refuse_ignored(self, "matryoshka", allowed="other losses than mse")
        return self

    @property
    def needed(self) -> Sequence[str]:
        """The settings of columns that the loss needs besides `anchor`."""
        if self.single:
            return ("teacher_vector",) if self.kind == "mse" else ()
        return ("positive", "score") if self.scored else super().needed

    @property
    def scored(self) -> bool:
        """Whether the loss compares cosines with scores of pairs."""
        return self.kind in SCORED

    @property
    def single(self) -> bool:
        """Whether the loss learns from the anchors alone."""
        return self.kind in ("simcse", "mse")

    @property
    def twice(self) -> bool:
        """Whether each anchor is encoded twice."""
        return self.kind == "simcse"


class EmbeddingSection(VectorSearchSection):
    """Sentence embeddings from pairs, triplets, scored pairs or single texts.

    ``{kind: embedding, train: pairs.csv, anchor: question, positive: answer}``

    `dev` and `test` are tables like `train`, or directories in the layout of BEIR.
    """

    head_type = PoolingSection

    kind: Literal["embedding"] = "embedding"
    pool: Pool | None = None
    """How the states of a text become one vector: `mean` of all tokens, first token (`cls`) or
    `last` token. By default, as in the checkpoint, or `mean`."""
    normalize: bool | None = None
    """Whether vectors have length 1, so that similarities are cosines. Otherwise `info_nce` and
    retrieval use dot products. By default, vectors and similarities are as in the checkpoint, or
    true."""
    projection: int | None = pydantic.Field(default=None, ge=1)
    """Width of a linear layer after pooling. By default, as in the checkpoint, or no layer."""
    teacher_vector: str | None = None
    """Column of a teacher's vectors in `train`, lists of numbers, for the loss `mse`. Vectors of
    another width than the model's need `projection`."""
    loss: EmbeddingLossSection = EmbeddingLossSection()
    """The loss."""

    @pydantic.model_validator(mode="after")
    def _vector_used(self) -> Self:
        if self.loss.kind != "mse":
            refuse_ignored(self, "teacher_vector", allowed="the loss mse")
        return self

    @property
    def teacher_columns(self) -> TeacherColumns | None:
        """The columns in `train` of what a teacher found. None if the loss has no teacher."""
        if self.teacher_vector is None:
            return super().teacher_columns
        return TeacherColumns("task.teacher_vector", (self.teacher_vector,))

    def train_task(self, *, accumulation: int, steps: int, **parts: Any) -> "EmbeddingTask":
        """Returns the task in the train loop, which encodes a batch in `accumulation` chunks."""
        from bert_jax.tasks.embedding.task import EmbeddingTask

        del steps
        return EmbeddingTask(training=self.loss, chunks=accumulation, **parts)

    def head_changes(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns what the settings change in the head. `normalize` also chooses the similarity."""
        changes = super().head_changes(tokenizer)
        changes["temperature"] = self.loss.temperature if self.loss.learn_temperature else None
        return changes if self.normalize is None else changes | {"similarity": None}

    def heads(self, head: PoolingSection) -> HeadsSection:
        """Returns the heads of the trained model."""
        return HeadsSection(pooler=False, mlm=False, next_sentence=False, embedding=head)

    @property
    def view(self) -> "ViewOfSplit":
        """Neighbours and a map of texts."""
        # Import here: charts are for reports, and reading a configuration imports this module.
        from bert_jax.tasks.search.sample import view_of_sample

        return view_of_sample
