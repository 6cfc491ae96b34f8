"""The post-LayerNorm encoder: a scan over layers with stacked parameters (arXiv 1810.04805)."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels import gelu_product
from bert_jax.kernels.attention_tiles import longest_rows
from bert_jax.kernels.pallas_call import PACKED
from bert_jax.model import layer_stack
from bert_jax.model.add_norm import add_norm
from bert_jax.model.architecture import Activation, PostNormArchitecture, Sublayer
from bert_jax.model.attention import SelfAttention
from bert_jax.model.dropout import TileFactors, tile_factors
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.gelu_project import GELUS, gelu_project
from bert_jax.model.kernel_limits import KernelUse, Limit, loss_limit, norm_limit
from bert_jax.model.layers import ACTIVATIONS, Dense, LayerNorm, gather_positions, subkey
from bert_jax.model.section import Execution, Remat
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups
from bert_jax.parallel.sharding_rules import constrain

SUBLAYERS: Final[dict[str, Sublayer]] = {
    "attention": "attention",
    "attention_norm": "attention",
    "intermediate": "ffn",
    "output": "ffn",
    "output_norm": "ffn",
}
"""The sublayer of each part of a layer."""


class LayerDropout(NamedTuple):
    """Dropout of a layer. An entry without dropout is None."""

    core: Any  # of `SelfAttention.dropout_of`
    attended: TileFactors | None  # of the output of attention
    fed: TileFactors | None  # of the output of the FFN


# Parameters with one entry per layer, or per group of layers that share them, and the dropout of
# `PostNormLayer.dropout_of` with one entry per layer, or None in evaluation.
_Layers: TypeAlias = tuple[Any, Any]


class PostNormLayer(nnx.Module):
    """Attention and FFN, each followed by dropout, residual sum and LayerNorm (post-LayerNorm)."""

    attention_type: ClassVar[type[SelfAttention]] = SelfAttention

    def __init__(
        self, *, architecture: PostNormArchitecture, execution: Execution, causal: bool
    ) -> None:
        width, inner = architecture.hidden_size, architecture.intermediate_size
        self.attention = self.attention_type(
            architecture=architecture, execution=execution, causal=causal
        )
        self.attention_norm = LayerNorm(architecture=architecture, execution=execution)
        dense = functools.partial(Dense, architecture=architecture, execution=execution)
        self.intermediate = dense((width, inner), ("embed", "mlp"))
        self.output = dense((inner, width), ("mlp", "embed"))
        self.output_norm = LayerNorm(architecture=architecture, execution=execution)
        self.activation: Activation = architecture.hidden_act
        self.fused_ffn = execution.ffn == "fused"
        self.width, self.dropout_rate = width, architecture.hidden_dropout_prob

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        seen: Any,
        *,
        dropout: LayerDropout | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the states at the positions `queries_BQ`, or all states if it is None.

        A query attends to the tokens of its segment, if causal only to itself and earlier ones.
        `seen` is from `PostNormEncoder.seen`. `dropout` is from `dropout_of`, or None in
        evaluation.
        """
        dropout = dropout or LayerDropout(None, None, None)
        attended = self.attention(x_BLD, seen, dropout=dropout.core, queries_BQ=queries_BQ)
        x_BQD = x_BLD if queries_BQ is None else gather_positions(x_BLD, queries_BQ)
        return self.from_attended(x_BQD, attended, dropout)

    def from_attended(self, x_BQD: Array, attended: Array, dropout: LayerDropout) -> Array:
        """Returns the layer's output from the states of its queries and what they attended to."""
        ended = functools.partial(add_norm, rate=self.dropout_rate)
        dense, norm = self.attention.output, self.attention_norm
        x_BQD = ended(x_BQD, attended, dense=dense, norm=norm, factors=dropout.attended)
        x_BQD = constrain(x_BQD, "batch", "length", "hidden")
        fed = self._fed(x_BQD)
        x_BQD = ended(x_BQD, fed, dense=self.output, norm=self.output_norm, factors=dropout.fed)
        return constrain(x_BQD, "batch", "length", "hidden")

    def dropout_of(
        self, keys: Array, segment_ids: Array, queries_BQ: Array | None = None
    ) -> LayerDropout:
        """Returns the dropout of a layer. `keys` are three keys."""
        core = self.attention.dropout_of(keys[0], segment_ids, queries_BQ)
        if self.dropout_rate == 0.0:
            return LayerDropout(core, None, None)
        tokens = segment_ids if queries_BQ is None else queries_BQ
        shape = (*tokens.shape, self.width)
        of_both = jax.vmap(
            lambda key: tile_factors(shape, key, self.dropout_rate, lines=queries_BQ)
        )(keys[1:])
        attended, fed = (jax.tree.map(operator.itemgetter(at), of_both) for at in range(2))
        return LayerDropout(core, attended, fed)

    def _fed(self, x_BLD: Array) -> Array:
        """Returns the output of the FFN without its last bias, which `add_norm` adds."""
        if self.fused_ffn:
            y_BLF = constrain(self.intermediate.without_bias(x_BLD), "batch", "length", "mlp")
            return gelu_project(
                y_BLF,
                self.intermediate.bias[...],
                self.output.kernel[...],
                gelu=GELUS[self.activation],
                use=self.output.use,
            )
        inner_BLF = constrain(self.intermediate(x_BLD), "batch", "length", "mlp")
        # In bfloat16, used on accelerators, recomputing the activation is cheaper than reading it.
        again = jax.checkpoint if inner_BLF.dtype == jnp.bfloat16 else lambda function: function
        return again(lambda x: self.output.without_bias(ACTIVATIONS[self.activation](x)))(inner_BLF)


class PostNormEncoder(nnx.Module):
    """Embeddings and layers.

    An unrolled scan takes fewer cycles, but its compile time grows with the number of layers.
    Consecutive layers can share their parameters, see `EncoderArchitecture.sharing`.
    """

    embeddings_type: ClassVar[type[Embeddings]] = Embeddings
    layer_type: ClassVar[type[PostNormLayer]] = PostNormLayer

    def __init__(
        self, *, architecture: PostNormArchitecture, execution: Execution, causal: bool
    ) -> None:
        """Creates abstract parameters. For `causal`, see `HeadsSection`."""
        self.embeddings = self.embeddings_type(architecture=architecture, execution=execution)
        self.depth = architecture.num_hidden_layers
        layer = self.layer_type(architecture=architecture, execution=execution, causal=causal)
        self.sharing = architecture.sharing
        depths = {part: len(architecture.sharing_of(of)) for part, of in SUBLAYERS.items()}
        self.layers = layer_stack.stacked(layer, depth=depths)
        self.remat: Remat = execution.remat
        self.fused = "fused" in (execution.attention, execution.norm, execution.ffn)
        self.unroll = execution.unroll or layer_stack.default_unroll(self.depth, on_tpu=False)

    def seen(self, batch: Mapping[str, Array]) -> Any:
        """Returns what the attention of every layer reads beside the states: the segments."""
        return batch["segment_ids"]

    def look_up(self, input_ids: Int[Array, "batch length"]) -> tuple[Array, Array]:
        """Returns the embeddings of tokens, and shares for the decoder, see `tied_embedding`."""
        return self.embeddings.look_up(input_ids)

    @property
    def table(self) -> Array:
        """The embedding table, float32 [V, D]."""
        return self.embeddings.word[...]

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length embedding"] | None = None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the last layer's states at the positions `queries_BQ`, or all states if None.

        The last layer computes only the queries. Their states, dropout included, do not depend on
        which other queries are computed. For the arguments, see `EncoderModel.hidden`.
        """
        x_BLD = self._embedded(batch, words_BLD=words_BLD, dropout_key=subkey(dropout_key, 0))
        segment_ids, seen = batch["segment_ids"], self.seen(batch)
        params, keys = self._params(), self._dropout_keys(dropout_key)
        if queries_BQ is None:
            layers = params, self._dropout(keys, segment_ids)
            return self._scan(x_BLD, seen, layers)[0]
        wanted = queries_BQ.shape[1]
        if self.fused:
            # Pad once here: otherwise every kernel would pad its input and slice its output.
            queries_BQ = jnp.pad(queries_BQ, ((0, 0), (0, -wanted % PACKED)))
        first, sizes, last = layer_stack.without_last_layer(params, sharing=self.sharing)
        if self.depth > 1:
            layers = first, self._dropout(None if keys is None else keys[:-1], segment_ids)
            x_BLD, _ = self._scan(x_BLD, seen, layers, sharing=sizes)
        dropout = None
        if keys is not None:
            dropout = self.layers.dropout_of(keys[-1], segment_ids, queries_BQ)
        return self._layer(x_BLD, seen, (last, dropout), queries_BQ)[:, :wanted]

    def every_layer(
        self,
        batch: Mapping[str, Array],
        *,
        read: Callable[[Array], Array] = lambda x_BLD: x_BLD,
    ) -> Float[Array, "states batch *rest"]:
        """Returns `read` of the embeddings' output and of every layer's output.

        The results are stacked: [layers + 1, B, L, D] by default. With a reducing `read`, such as a
        mean over L, the complete states of only one layer are in memory. For the batch, see
        `EncoderModel.hidden`.
        """
        x_BLD = self._embedded(batch, dropout_key=None)
        layers = self._params(), None
        _, read_layers = self._scan(x_BLD, self.seen(batch), layers, read=read)
        return jnp.concatenate([read(x_BLD)[None], read_layers])

    def attention_maps(
        self, batch: Mapping[str, Array]
    ) -> Float[Array, "layers batch heads length length"]:
        """Returns the attention probabilities, see `EncoderModel.attention_maps`."""
        entering_NBLD = self.every_layer(batch)[:-1]
        seen = self.seen(batch)
        attention_def, stacked = nnx.split(self.layers.attention)

        def layer(_: None, params_and_state: tuple[Any, Array]) -> tuple[None, Array]:
            params, x_BLD = params_and_state
            found = nnx.merge(attention_def, params).scores(x_BLD, seen)
            return None, found.probabilities

        stack = stacked, entering_NBLD
        return layer_stack.scan_layers(layer, None, stack, sharing=self.sharing, unroll=1)[1]

    def _embedded(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Array | None = None,
        dropout_key: Array | None,
    ) -> Array:
        ids = batch["input_ids"], batch["token_type_ids"], batch.get("position_ids")
        return self.embeddings(*ids, words_BLD=words_BLD, dropout_key=dropout_key)

    def _params(self) -> Any:
        """Returns the parameters of all layers, gathered for use."""
        reused = self.unroll < self.depth or len(self.sharing) < self.depth
        return layer_stack.gathered_params(self.layers) if reused else nnx.state(self.layers)

    def _dropout_keys(self, dropout_key: Array | None) -> Array | None:
        """Returns the dropout keys of all layers, [layers, 3]."""
        key = subkey(dropout_key, 1)
        return None if key is None else jax.random.split(key, (self.depth, 3))

    def _dropout(self, keys: Array | None, segment_ids: Array) -> LayerDropout | None:
        """Returns the dropout of layers, stacked.

        It is computed for all layers at once. On a TPU, each of many small operations takes a
        microsecond.
        """
        if keys is None:
            return None
        return jax.vmap(lambda of_layer: self.layers.dropout_of(of_layer, segment_ids))(keys)

    def _scan(
        self,
        x_BLD: Array,
        seen: Any,
        layers: _Layers,
        *,
        read: Callable[[Array], Array | None] = lambda _: None,
        sharing: Sequence[int] | None = None,
    ) -> tuple[Array, Any]:
        """Returns the output of the last layer, and `read` of each layer's output, stacked."""

        def layer(x: Array, of_layer: _Layers) -> tuple[Array, Array | None]:
            x = self._layer(x, seen, of_layer)
            return x, read(x)

        sizes, unroll = sharing or self.sharing, min(self.unroll, self.depth)
        return layer_stack.scan_layers(layer, x_BLD, layers, sharing=sizes, unroll=unroll)

    def _layer(
        self,
        x_BLD: Array,
        seen: Any,
        of_layer: _Layers,
        queries_BQ: Array | None = None,
    ) -> Array:
        """Returns a layer's output at `queries_BQ`, or for all tokens if it is None."""

        def layer(x_BLD: Array, of_layer: _Layers) -> Array:
            params, dropout = of_layer
            module = nnx.merge(nnx.graphdef(self.layers), params)
            return module(x_BLD, seen, dropout=dropout, queries_BQ=queries_BQ)

        return layer_stack.REMAT[self.remat](layer)(x_BLD, of_layer)


POST_NORM_GROUPS: Final = (
    ParameterGroup("encoder/embeddings", "embeddings"),
    *(ParameterGroup(f"encoder/layers/{part}", "layers") for part in SUBLAYERS),
)
"""The groups of the encoder's parameters."""


def shared_groups(groups: ParameterGroups, architecture: PostNormArchitecture) -> ParameterGroups:
    """Returns the groups of an architecture whose layers share parameters."""
    return groups.shared(
        {f"encoder/layers/{part}": architecture.sharing_of(of) for part, of in SUBLAYERS.items()}
    )


def post_norm_limit(use: KernelUse) -> Limit | None:
    """Returns why a kernel cannot run, see `EncoderModel.limit`. All supported rows fit VMEM."""
    part, execution, architecture, parts, longest, _ = use
    width, itemsize = architecture.hidden_size, jnp.dtype(execution.dtype).itemsize
    if part == "norm":
        return norm_limit(architecture)
    if part == "loss":
        return loss_limit(architecture, execution, vocab_parts=parts["vocab"])
    if part == "attention":
        heads = architecture.num_attention_heads // parts["heads"]
        most = longest_rows(heads=heads, columns=architecture.head_dim, itemsize=itemsize)
        if longest <= most:
            return None
        if not most:
            found = f"{heads} heads of {architecture.head_dim} columns on a device"
            return Limit(found, "fewer or narrower heads, of at most 128 columns")
        allowed = f"up to {most} with this model's heads and dtype"
        return Limit(f"rows of {longest} tokens", allowed)
    inner = architecture.intermediate_size // parts["mlp"]
    if architecture.hidden_act not in GELUS:
        return Limit(f"hidden_act: {architecture.hidden_act}", " or ".join(GELUS))
    if execution.dtype != "bfloat16":
        return Limit(f"dtype: {execution.dtype}", "bfloat16")
    if gelu_product.fits(inputs=inner, outputs=width):
        return None
    return Limit(f"an FFN matrix of {width} x {inner} on a device", "multiples of 128")
