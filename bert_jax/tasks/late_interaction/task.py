"""The task of late interaction in the train loop."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.task import Batch, Metrics
from bert_jax.tasks.late_interaction.section import LateInteractionLossSection
from bert_jax.tasks.search.task import VectorTask, passage_ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateInteractionTask(VectorTask):
    """Late interaction."""

    training: LateInteractionLossSection

    def __post_init__(self) -> None:
        """Raises UserError for unattended masks with DeBERTa, because no export could have them."""
        how = self.heads.late_interaction
        if self.architecture.kind == "deberta" and how and how.query_expansion == "unattended":
            raise UserError(
                "late_interaction.unattended",
                "in DeBERTa, unattended tokens attend to no token. Use attended.",
                place="finetune.task.query_expansion",
            )

    def loss_of(
        self, model: EncoderModel, vectors_BN: jax.Array, batch: Batch, *, step: jax.Array | None
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss of the token vectors [B, N, L, W]. Passages lack the skipped pieces."""
        del step
        assert model.heads.late_interaction is not None
        skipped = jnp.asarray(model.heads.late_interaction.skipped, jnp.int32)
        skipped_BPL = jnp.isin(passage_ids(batch), skipped)
        padding = vectors_BN.shape[2] - skipped_BPL.shape[2]
        skipped_BNL = jnp.pad(skipped_BPL, ((0, 0), (1, 0), (0, padding)))
        vectors_BN = jnp.where(skipped_BNL[..., None], 0, vectors_BN)
        return self.similarity_loss(model, vectors_BN, batch), {}
