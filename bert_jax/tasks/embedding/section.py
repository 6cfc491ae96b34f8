"""The task family of sentence embeddings: its settings, and its task in the train loop."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pydantic

from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import Pool, PoolingSection, TextHeadSection
from bert_jax.section import refuse_ignored
from bert_jax.tasks.family import ViewOfSplit
from bert_jax.tasks.search.section import VectorLossSection, VectorSearchSection

if TYPE_CHECKING:
    from bert_jax.tasks.embedding.task import EmbeddingTask

SCORED: Final = ("cosent", "cosine")  # losses that compare cosines with scores


class EmbeddingLossSection(VectorLossSection):
    """The loss. Its negatives are all other texts of the global batch."""

    kind: Literal["info_nce", "cosent", "cosine", "simcse"] = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. `simcse`: `info_nce` for single texts, encoded twice with different
    dropout (arXiv 2104.08821). `cosent`: for scored pairs; a higher score needs a higher cosine.
    `cosine`: for scored pairs; squared difference of cosine and score."""
    temperature: float = pydantic.Field(default=0.05, gt=0)
    """Divisor of the similarities. Not used by `cosine`."""
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
        if self.kind in SCORED:
            refuse_ignored(self, "learn_temperature", "symmetric", allowed="info_nce, simcse")
        return self

    @property
    def needed(self) -> Sequence[str]:
        """The settings of columns that the loss needs besides `anchor`."""
        return ("positive", "score") if self.scored else () if self.single else ("positive",)

    @property
    def scored(self) -> bool:
        """Whether the loss compares cosines with scores of pairs."""
        return self.kind in SCORED

    @property
    def single(self) -> bool:
        """Whether the loss learns from the anchors alone."""
        return self.kind == "simcse"


class EmbeddingSection(VectorSearchSection):
    """Sentence embeddings from pairs, triplets, scored pairs or single texts.

    ``{kind: embedding, train: pairs.csv, anchor: question, positive: answer}``

    `dev` and `test` are tables like `train`, or directories in the layout of BEIR.
    """

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
    loss: EmbeddingLossSection = EmbeddingLossSection()
    """The loss."""

    def train_task(self, *, accumulation: int, **parts: Any) -> "EmbeddingTask":
        """Returns the task in the train loop, which encodes a batch in `accumulation` chunks."""
        from bert_jax.tasks.embedding.task import EmbeddingTask

        return EmbeddingTask(training=self.loss, chunks=accumulation, **parts)

    def head(self, found: TextHeadSection | None) -> PoolingSection:
        """Returns how the trained model computes vectors. `found`: how the checkpoint does."""
        names = ("pool", "normalize", "projection", "query_prefix", "passage_prefix")
        asked = {name: value for name in names if (value := getattr(self, name)) is not None}
        asked["temperature"] = self.loss.temperature if self.loss.learn_temperature else None
        if self.normalize is not None:
            asked["similarity"] = None
        known = found if isinstance(found, PoolingSection) else PoolingSection()
        return known.model_copy(update=asked)

    def heads(self, head: PoolingSection) -> HeadsSection:
        """Returns the heads of the trained model."""
        return HeadsSection(pooler=False, mlm=False, next_sentence=False, embedding=head)

    @property
    def view(self) -> "ViewOfSplit":
        """Neighbours and a map of texts."""
        # Import here: charts are for reports, and reading a configuration imports this module.
        from bert_jax.tasks.search.sample import view_of_sample

        return view_of_sample
