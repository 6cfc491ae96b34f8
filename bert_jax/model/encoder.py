"""The encoder: a scan over layers, whose parameters are stacked along a leading axis."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.pallas_call import PACKED
from bert_jax.model.add_norm import add_norm
from bert_jax.model.attention import SelfAttention
from bert_jax.model.config import Activation, Architecture, Execution, Remat
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.gelu_project import gelu_project
from bert_jax.model.kernel_choice import default_unroll
from bert_jax.model.layers import ACTIVATIONS, Dense, LayerNorm, gather_positions, subkey
from bert_jax.parallel.sharding_rules import constrain, gathered

M = TypeVar("M", bound=nnx.Module)

# What a layer stores for the backward pass. `none`: all arrays. `attention`: all but attention
# weights, see attention.py. `dots`: products with parameters. `full`: only the input of the layer.
REMAT: Final[dict[Remat, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "none": lambda layer: layer,
    "attention": lambda layer: layer,
    "dots": lambda layer: jax.checkpoint(
        layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "full": jax.checkpoint,
}

# Parameters and dropout keys [3], stacked for several layers. Keys are None in evaluation.
_Layers: TypeAlias = tuple[Any, Array | None]


class EncoderLayer(nnx.Module):
    """Attention and FFN, each followed by dropout, residual sum and LayerNorm (post-LayerNorm)."""

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        width, inner = architecture.hidden_size, architecture.intermediate_size
        self.attention = SelfAttention(architecture=architecture, execution=execution)
        self.attention_norm = LayerNorm(architecture=architecture, execution=execution)
        dense = functools.partial(Dense, architecture=architecture, execution=execution)
        self.intermediate = dense((width, inner), ("embed", "mlp"))
        self.output = dense((inner, width), ("mlp", "embed"))
        self.output_norm = LayerNorm(architecture=architecture, execution=execution)
        self.activation: Activation = architecture.hidden_act
        self.fused_ffn = execution.ffn == "fused"
        self.dropout_rate = architecture.hidden_dropout_prob

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        *,
        dropout_keys: Array | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the states at the positions `queries_BQ`, or all states if it is None.

        Every query attends to all tokens of its segment. `dropout_keys` [3] is None in evaluation.
        """
        core_key, attended_key, fed_key = [None] * 3 if dropout_keys is None else dropout_keys
        attended = self.attention(x_BLD, segment_ids, dropout_key=core_key, queries_BQ=queries_BQ)
        ended = functools.partial(add_norm, rate=self.dropout_rate, lines=queries_BQ)
        x_BQD = ended(
            x_BLD if queries_BQ is None else gather_positions(x_BLD, queries_BQ),
            attended,
            dense=self.attention.output,
            norm=self.attention_norm,
            dropout_key=attended_key,
        )
        x_BQD = constrain(x_BQD, "batch", "length", "hidden")
        fed = self._fed(x_BQD)
        x_BQD = ended(x_BQD, fed, dense=self.output, norm=self.output_norm, dropout_key=fed_key)
        return constrain(x_BQD, "batch", "length", "hidden")

    def _fed(self, x_BLD: Array) -> Array:
        """Returns the output of the FFN without its last bias, which `add_norm` adds."""
        if self.fused_ffn:
            y_BLF = constrain(self.intermediate.without_bias(x_BLD), "batch", "length", "mlp")
            kernel = self.output.kernel[...]
            return gelu_project(y_BLF, self.intermediate.bias[...], kernel, use=self.output.use)
        inner_BLF = constrain(self.intermediate(x_BLD), "batch", "length", "mlp")
        # In bfloat16, used on accelerators, recomputing the activation is cheaper than reading it.
        again = jax.checkpoint if inner_BLF.dtype == jnp.bfloat16 else lambda function: function
        return again(lambda x: self.output.without_bias(ACTIVATIONS[self.activation](x)))(inner_BLF)


class Encoder(nnx.Module):
    """Embeddings and layers.

    An unrolled scan takes fewer cycles, but its compile time grows with the number of layers.
    """

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        self.embeddings = Embeddings(architecture=architecture, execution=execution)
        self.depth = architecture.num_hidden_layers
        layer = EncoderLayer(architecture=architecture, execution=execution)
        self.layers = stacked(layer, depth=self.depth)
        self.remat: Remat = execution.remat
        self.fused = "fused" in (execution.attention, execution.norm, execution.ffn)
        self.unroll = execution.unroll or default_unroll(self.depth, on_tpu=False)

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length hidden"] | None = None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the last layer's states at the positions `queries_BQ`, or all states if None.

        The last layer computes only the queries. Their states, dropout included, do not depend on
        which other queries are computed. For the arguments, see `Bert.hidden`.
        """
        x_BLD = self._embedded(batch, words_BLD=words_BLD, dropout_key=subkey(dropout_key, 0))
        segment_ids = batch["segment_ids"]
        layers = self._layers(dropout_key)
        if queries_BQ is None:
            return self._scan(x_BLD, segment_ids, layers)[0]
        wanted = queries_BQ.shape[1]
        if self.fused:
            # Pad once here: otherwise every kernel would pad its input and slice its output.
            queries_BQ = jnp.pad(queries_BQ, ((0, 0), (0, -wanted % PACKED)))
        params, keys = layers
        first, last = split_layers(params, [self.depth - 1, 1])
        last = jax.tree.map(lambda x: x[0], last)
        first_keys, last_keys = (None, None) if keys is None else (keys[:-1], keys[-1])
        if self.depth > 1:
            x_BLD, _ = self._scan(x_BLD, segment_ids, (first, first_keys))
        return self._layer(x_BLD, segment_ids, (last, last_keys), queries_BQ)[:, :wanted]

    def every_layer(
        self,
        batch: Mapping[str, Array],
        *,
        read: Callable[[Array], Array] = lambda x_BLD: x_BLD,
    ) -> Float[Array, "states batch *rest"]:
        """Returns `read` of the embeddings' output and of every layer's output, without dropout.

        The results are stacked: [layers + 1, B, L, D] by default. With a reducing `read`, such as a
        mean over L, the complete states of only one layer are in memory. For the batch, see
        `Bert.hidden`.
        """
        x_BLD = self._embedded(batch, dropout_key=None)
        _, read_layers = self._scan(x_BLD, batch["segment_ids"], self._layers(None), read=read)
        return jnp.concatenate([read(x_BLD)[None], read_layers])

    def _embedded(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Array | None = None,
        dropout_key: Array | None,
    ) -> Array:
        ids = batch["input_ids"], batch["token_type_ids"], batch.get("position_ids")
        return self.embeddings(*ids, words_BLD=words_BLD, dropout_key=dropout_key)

    def _layers(self, dropout_key: Array | None) -> _Layers:
        """Returns the parameters of all layers, gathered for use, and their dropout keys."""
        params = nnx.state(self.layers)
        if self.unroll < self.depth:
            params = jax.tree.map(
                lambda one: one.replace(gathered(one[...], one.logical)), params, is_leaf=_is_param
            )
        layers_key = subkey(dropout_key, 1)
        # Split all keys in one operation, because XLA compiles each such operation slowly.
        keys = None if layers_key is None else jax.random.split(layers_key, (self.depth, 3))
        return params, keys

    def _scan(
        self,
        x_BLD: Array,
        segment_ids: Array,
        layers: _Layers,
        *,
        read: Callable[[Array], Array | None] = lambda _: None,
    ) -> tuple[Array, Any]:
        """Returns the output of the last layer, and `read` of each layer's output, stacked."""

        def layer(x: Array, of_layer: _Layers) -> tuple[Array, Array | None]:
            x = self._layer(x, segment_ids, of_layer)
            return x, read(x)

        return jax.lax.scan(layer, x_BLD, layers, unroll=min(self.unroll, self.depth))

    def _layer(
        self,
        x_BLD: Array,
        segment_ids: Array,
        of_layer: _Layers,
        queries_BQ: Array | None = None,
    ) -> Array:
        """Returns a layer's output at `queries_BQ`, or for all tokens if it is None."""

        def layer(x_BLD: Array, of_layer: _Layers) -> Array:
            params, dropout_keys = of_layer
            module = nnx.merge(nnx.graphdef(self.layers), params)
            return module(x_BLD, segment_ids, dropout_keys=dropout_keys, queries_BQ=queries_BQ)

        return REMAT[self.remat](layer)(x_BLD, of_layer)


def stacked(layer: M, *, depth: int) -> M:
    """Returns the module of a layer with the parameters of all layers along a leading axis."""
    graphdef, state = nnx.split(layer)

    def stack(one: nnx.Variable) -> nnx.Variable:
        shape, axes = (depth, *one.shape), ("layers", *one.logical)
        return one.replace(jax.ShapeDtypeStruct(shape, one.dtype), logical=axes)

    return nnx.merge(graphdef, jax.tree.map(stack, state, is_leaf=_is_param))


def _is_param(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def split_layers(params: Any, sizes: Sequence[int]) -> list[Any]:
    """Splits stacked parameters into parts with the given numbers of layers."""
    leaves, structure = jax.tree.flatten(params)
    parts = zip(*(_cut(leaf, tuple(sizes)) for leaf in leaves), strict=True)
    return [structure.unflatten(part) for part in parts]


def _cut_forward(x: Array, sizes: tuple[int, ...]) -> tuple[tuple[Array, ...], None]:
    ends = itertools.accumulate(sizes)
    return tuple(x[end - size : end] for end, size in zip(ends, sizes, strict=True)), None


def _cut_backward(sizes: tuple[int, ...], _: None, gradients: tuple[Array, ...]) -> tuple[Array]:
    # The gradient of JAX would be a sum of arrays that are padded with zeros.
    del sizes
    return (jnp.concatenate(gradients),)


_cut = jax.custom_vjp(lambda x, sizes: _cut_forward(x, sizes)[0], nondiff_argnums=(1,))
_cut.defvjp(_cut_forward, _cut_backward)
