"""DeBERTa: the post-LayerNorm encoder with disentangled attention."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.encoders.deberta.encoder import DebertaEncoder
from bert_jax.encoders.deberta.section import DebertaArchitecture
from bert_jax.kernels.distances import LEAST_VMEM, LONGEST
from bert_jax.kernels.precision import precision_of
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import HEAD_GROUPS, Pooler, ReplacedTokenHead
from bert_jax.model.kernel_limits import KernelUse, Limit
from bert_jax.model.layers import ACTIVATIONS, LayerNorm, subkey
from bert_jax.model.post_norm import POST_NORM_GROUPS, post_norm_limit
from bert_jax.model.post_norm_model import PostNormModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups


class DebertaReplacedTokenHead(ReplacedTokenHead):
    """ELECTRA's head with a LayerNorm before it.

    Source: `LMMaskPredictionHead` of Microsoft's DeBERTa, `replaced_token_detection_model.py`.
    """

    def __init__(self, *, architecture: EncoderArchitecture, execution: Execution) -> None:
        super().__init__(architecture=architecture, execution=execution)
        self.norm = LayerNorm(architecture=architecture, execution=execution)

    def __call__(
        self, hidden_BLD: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length"]:
        """Returns float32 logits: above 0 for a token that was probably replaced."""
        return super().__call__(self.norm(hidden_BLD))


class Deberta(PostNormModel):
    """DeBERTa with the heads of a `HeadsSection` (arXiv 2006.03654, 2111.09543).

    The pooler has GELU, and dropout before it. Hugging Face's classes for sequence classification
    and multiple choice read it.
    """

    groups = ParameterGroups(
        (
            *POST_NORM_GROUPS,
            ParameterGroup("encoder/relative", "embeddings"),
            ParameterGroup("encoder/relative_norm", "embeddings"),
            *HEAD_GROUPS,
        )
    )
    encoder_type = DebertaEncoder
    replaced_token_head = DebertaReplacedTokenHead

    def __init__(
        self, *, architecture: DebertaArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        if heads.pooler:
            self.pooler = Pooler(
                activation=ACTIVATIONS["gelu_erf"], architecture=architecture, execution=execution
            )
        self.pooler_dropout = architecture.pooler_dropout

    @staticmethod
    def limit(use: KernelUse) -> Limit | None:
        """Returns why a kernel cannot run, see `EncoderModel.limit`."""
        if use.part == "attention" and use.vmem is not None and use.vmem < LEAST_VMEM:
            allowed = f"at least {LEAST_VMEM >> 20} MiB, as on v5e, v5p and v6e"
            return Limit(f"{use.vmem >> 20} MiB of VMEM", allowed)
        if use.part == "attention" and use.longest > LONGEST:
            return Limit(f"rows of {use.longest} tokens", f"up to {LONGEST}")
        return post_norm_limit(use)

    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head, see `EncoderModel`."""
        if self.task_reads_pooler:
            read = self.read_token(hidden_BLD, segment_ids)
            hidden_BLD = dropout(read, self.pooler_dropout, subkey(dropout_key, 0))
            segment_ids, dropout_key = segment_ids[:, :1], subkey(dropout_key, 1)
        return super().task_states(hidden_BLD, segment_ids, dropout_key)

    def replaced_token_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
    ) -> Float[Array, "batch length"]:
        """Returns a float32 logit per token: above 0 for a token that was probably replaced.

        The head reads the sum of the state of a token and the state of the [CLS] of its example.
        """
        is_first_BL = segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
        one_hot_BLL = (segment_ids[:, :, None] == segment_ids[:, None]) & is_first_BL[:, None]
        # A product with a one-hot matrix is cheaper than a gather and its gradient.
        cls_BLD = jnp.einsum(
            "blm,bmd->bld",
            one_hot_BLL.astype(hidden_BLD.dtype),
            hidden_BLD,
            precision=precision_of(hidden_BLD.dtype),
        )
        return self.replaced_tokens(hidden_BLD + cls_BLD)


MODEL = Deberta
