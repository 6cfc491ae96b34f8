"""The task family of late interaction: its settings, and its task in the train loop."""

import string
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import TokenVectorsSection
from bert_jax.tasks.family import ViewOfSplit
from bert_jax.tasks.search.vector_section import VectorLossSection, VectorSearchSection
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.tasks.late_interaction.task import LateInteractionTask


class LateInteractionLossSection(VectorLossSection):
    """The loss. Its negatives are all other texts of the global batch."""

    kind: Literal["info_nce", "margin_mse", "kl"] = "info_nce"
    """`info_nce`: for pairs and triplets; each anchor chooses its positive among all positives and
    negatives of the batch. For triplets with the scores of a teacher: `margin_mse`, squared
    difference of margins and the teacher's margins; a margin is the score of the positive minus
    that of a negative (arXiv 2010.02666). `kl`, divergence of the softmax of scores from that of
    the teacher's scores (arXiv 2112.01488)."""
    temperature: float = pydantic.Field(default=1.0, gt=0)
    """Divisor of the scores. They are sums over the tokens of a query, so it is larger than for
    sentence embeddings. Not used by `margin_mse`."""


class LateInteractionSection(VectorSearchSection):
    """Late interaction (ColBERT): a vector for each token, trained with pairs or triplets.

    ``{kind: late_interaction, train: pairs.csv, anchor: question, positive: answer}``

    A passage's score for a query is the sum, over the query's tokens, of the largest cosine with a
    token of the passage. `dev` and `test` are tables like `train`, or directories in the layout of
    BEIR.
    """

    head_type = TokenVectorsSection

    kind: Literal["late_interaction"] = "late_interaction"
    projection: int | None = pydantic.Field(default=None, ge=1)
    """Width of the vectors. By default, as in the checkpoint, or 128."""
    query_length: int | None = pydantic.Field(default=None, ge=4)
    """Longest query in tokens, special tokens and prefix included. By default, as in the
    checkpoint, or 32. `finetune.max_length` is the limit of passages."""
    query_expansion: Literal["attended", "unattended", "none"] | None = None
    """Whether mask tokens fill up every query to `query_length`. They are compared with passages,
    like the query's own tokens. `attended`: all tokens attend to them. `unattended`: no token
    attends to them, as in ColBERT. By default, as in the checkpoint, or `none`."""
    skip_punctuation: bool | None = None
    """Whether the vectors of punctuation are left out of passages. By default, as in the
    checkpoint, or false."""
    loss: LateInteractionLossSection = LateInteractionLossSection()
    """The loss."""

    def train_task(self, *, accumulation: int, steps: int, **parts: Any) -> "LateInteractionTask":
        """Returns the task in the train loop, which encodes a batch in `accumulation` chunks."""
        del steps
        from bert_jax.tasks.late_interaction.task import LateInteractionTask

        return LateInteractionTask(training=self.loss, chunks=accumulation, **parts)

    def head_changes(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns what the settings change in the head. The tokenizer knows the punctuation."""
        changes = super().head_changes(tokenizer)
        if self.query_expansion == "none":
            changes["query_expansion"] = None
        if self.skip_punctuation is not None:
            pieces = string.punctuation if self.skip_punctuation else ""
            changes["skipped"] = tokenizer.ids_of([*pieces])
        return changes

    def check_lengths(self, max_length: int) -> None:
        """Raises UserError if queries could be longer than `max_length`."""
        if self.query_length is not None and self.query_length > max_length:
            raise UserError(
                "late_interaction.query_length",
                f"found {self.query_length}, allowed: at most {max_length} (finetune.max_length)",
                place="task.query_length",
            )

    @property
    def view(self) -> "ViewOfSplit":
        """Rankings, and which tokens match."""
        # Import here: charts are for reports, and reading a configuration imports this module.
        from bert_jax.tasks.search.sample import view_of_matches

        return view_of_matches

    def heads(self, head: TokenVectorsSection) -> HeadsSection:
        """Returns the heads of the trained model."""
        return HeadsSection(pooler=False, mlm=False, next_sentence=False, late_interaction=head)
