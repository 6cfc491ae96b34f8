"""The model of the encoders with pre-norm layers, without the modules before their task heads."""

from typing import ClassVar, Final

from jaxtyping import Array, Float, Int

from bert_jax.kernels import geglu_gradients
from bert_jax.kernels.pallas_call import LANES
from bert_jax.kernels.rotary_attention_tiles import WIDEST_WINDOW, longest_row
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.gated_project import GATES
from bert_jax.model.heads import HEAD_GROUPS, TaskHead
from bert_jax.model.kernel_limits import KernelUse, Limit, loss_limit, norm_limit
from bert_jax.model.pooling import pooled_states
from bert_jax.model.pre_norm import PreNormEncoder
from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups

# Widths of a head, and windows, in the kernel of rotary attention.
HEAD_COLUMNS: Final = (64, 128)
WINDOWS: Final = range(32, WIDEST_WINDOW + 1, 32)


def pre_norm_groups(*, first_normed: int) -> ParameterGroups:
    """Returns the groups of all parameters. `first_normed` is the first layer with two norms."""
    parts = *("query", "key", "value", "output"), *("ffn_norm", "gate", "up", "down")
    return ParameterGroups(
        (
            ParameterGroup("encoder/word", "embeddings"),
            ParameterGroup("encoder/norm", "embeddings"),
            ParameterGroup("encoder/attention_norms", "layers", first_layer=first_normed),
            *(ParameterGroup(f"encoder/layers/{part}", "layers") for part in parts),
            ParameterGroup("encoder/last_norm", "layers", first_layer=-1),
            ParameterGroup("head", "pooler", title="the prediction head"),
            *HEAD_GROUPS,
        )
    )


class PreNormModel(EncoderModel):
    """A stack of pre-norm layers. Subclasses add what a task head reads."""

    groups = pre_norm_groups(first_normed=0)
    default_task_dropout: ClassVar[float] = 0.0

    def __init__(
        self, *, architecture: PreNormArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        self.encoder = PreNormEncoder(**parts, causal=heads.causal)
        self.pooling = architecture.task_pooling if heads.scores_rows else None
        if heads.task is not None:
            deviation, own = architecture.task_range, heads.task_dropout
            self.task = TaskHead(outputs=heads.outputs, deviation=deviation, **parts)
            self.task_dropout = self.default_task_dropout if own is None else own

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the token that the task head reads, see `EncoderModel`."""
        return super().read_positions(segment_ids) if self.pooling == "first" else None

    def pooled_for_task(
        self, hidden_BLD: Array, segment_ids: Array
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the states that the task head reads: all, or one vector of a row, [B, 1, D]."""
        if self.pooling == "first":
            return self.read_token(hidden_BLD, segment_ids)
        if self.pooling == "mean":
            mean_BD = pooled_states(hidden_BLD, segment_ids, pool="mean")
            return mean_BD[:, None].astype(hidden_BLD.dtype)
        return hidden_BLD

    @staticmethod
    def limit(use: KernelUse) -> Limit | None:
        """Returns why a kernel cannot run, see `EncoderModel.limit`."""
        if use.part == "loss":
            return loss_limit(use.architecture, use.execution, vocab_parts=use.parts["vocab"])
        if use.part == "norm":
            return norm_limit(use.architecture)
        if use.part == "ffn":
            return _ffn_limit(use.architecture, use.execution)
        return _attention_limit(use.architecture, use)


def _attention_limit(architecture: PreNormArchitecture, use: KernelUse) -> Limit | None:
    if architecture.attention_dropout:
        return Limit(f"attention_dropout: {architecture.attention_dropout}", "0")
    columns, dtype = architecture.head_dim, use.execution.dtype
    heads = architecture.num_attention_heads // use.parts["heads"]
    if columns not in HEAD_COLUMNS or heads * columns % LANES or dtype != "bfloat16":
        found = f"{heads} heads of {columns} columns on a device in {dtype}"
        return Limit(found, "pairs of 64-column heads, or 128-column heads, in bfloat16")
    if use.longest > (most := longest_row(use.vmem)):
        return Limit(f"rows of {use.longest} tokens", f"up to {most}")
    windows = map(architecture.window_of, range(architecture.period))
    for window in windows:
        if window is not None and window not in WINDOWS:
            allowed = f"multiples of {WINDOWS.step} up to {WIDEST_WINDOW}"
            return Limit(f"a window of {window} tokens", allowed)
    return None


def _ffn_limit(architecture: PreNormArchitecture, execution: Execution) -> Limit | None:
    if architecture.hidden_act not in GATES:
        return Limit(f"hidden_act: {architecture.hidden_act}", " or ".join(GATES))
    if architecture.mlp_dropout:
        return Limit(f"mlp_dropout: {architecture.mlp_dropout}", "0")
    if execution.dtype != "bfloat16":
        return Limit(f"dtype: {execution.dtype}", "bfloat16")
    if geglu_gradients.fits(architecture.hidden_size):
        return None
    allowed = f"multiples of 128 up to {geglu_gradients.WIDEST}"
    return Limit(f"a hidden size of {architecture.hidden_size}", allowed)
