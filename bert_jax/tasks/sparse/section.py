"""The task family of sparse encoders: its settings, and its task in the train loop."""

from typing import TYPE_CHECKING, Any, Literal

import pydantic

from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.tasks.family import ViewOfSplit
from bert_jax.tasks.search.vector_section import VectorLossSection, VectorSearchSection

if TYPE_CHECKING:
    from bert_jax.tasks.sparse.task import SparseTask


class SparseLossSection(VectorLossSection):
    """The loss. Its negatives are all other texts of the global batch.

    A regulariser is added, which makes vectors sparse: the sum over all pieces of the squared mean
    weight of the piece (FLOPS, arXiv 2004.05665).
    """

    kind: Literal["info_nce", "margin_mse", "kl"] = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. Losses that learn a teacher's scores of triplets: `margin_mse`, squared
    difference of margins and the teacher's margins (arXiv 2010.02666). `kl`, divergence of the
    softmax of similarities from that of the teacher's scores (arXiv 2010.11386)."""
    query_flops: float = pydantic.Field(default=5e-5, ge=0)
    """Weight of the regulariser of anchors. Larger weights leave fewer pieces."""
    passage_flops: float = pydantic.Field(default=3e-5, ge=0)
    """Weight of the regulariser of positives and negatives."""
    flops_warmup_fraction: float = pydantic.Field(default=1 / 3, ge=0, le=1)
    """Fraction of the training in which both weights rise from 0, with the square of the step."""


class SparseSection(VectorSearchSection):
    """A sparse encoder (SPLADE) from pairs or triplets. The checkpoint needs an MLM head.

    ``{kind: sparse, train: pairs.csv, anchor: question, positive: answer}``

    `dev` and `test` are tables like `train`, or directories in the layout of BEIR.
    """

    head_type = SparseHeadSection

    kind: Literal["sparse"] = "sparse"
    activation: Literal["relu", "log1p_relu"] | None = None
    """Function of the logits before log(1 + x), see `model.heads.sparse`. By default, as in the
    checkpoint, or `relu`."""
    top_k: int | None = pydantic.Field(default=None, ge=1)
    """Number of pieces that remain of a vector after training. By default, as in the checkpoint, or
    all pieces with a weight."""
    loss: SparseLossSection = SparseLossSection()
    """The loss."""

    def train_task(self, *, accumulation: int, steps: int, **parts: Any) -> "SparseTask":
        """Returns the task in the train loop, which encodes a batch in `accumulation` chunks."""
        from bert_jax.tasks.sparse.task import SparseTask

        warmup = round(steps * self.loss.flops_warmup_fraction)
        return SparseTask(training=self.loss, warmup=warmup, chunks=accumulation, **parts)

    def heads(self, head: SparseHeadSection) -> HeadsSection:
        """Returns the heads of the trained model."""
        return HeadsSection(pooler=False, next_sentence=False, sparse=head)

    @property
    def view(self) -> "ViewOfSplit":
        """Pieces of queries and passages."""
        # Import here: charts are for reports, and reading a configuration imports this module.
        from bert_jax.tasks.sparse.view import view_of_pieces

        return view_of_pieces
