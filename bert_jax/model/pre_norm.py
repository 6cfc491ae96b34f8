"""A stack of pre-norm layers with rotary positions, of ModernBERT and its relatives.

Shape suffixes: B batch, L length, Q tokens whose states are computed, D hidden size, F FFN width, H
heads, K head columns.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.pallas_call import PACKED
from bert_jax.model.add_norm import embedding_norm, pre_norm
from bert_jax.model.dropout import dropout
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layer_stack import (
    REMAT,
    default_unroll,
    each_layer,
    gathered_params,
    split_layers,
    stacked,
)
from bert_jax.model.layers import param, subkey
from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.pre_norm_layer import KEYS, PreNormLayer, norm_of
from bert_jax.model.rotary import rotations
from bert_jax.model.section import Dtype, Execution, Remat
from bert_jax.model.tied_embedding import looked_up, shares_of
from bert_jax.parallel.sharding_rules import constrain


class PreNormEncoder(nnx.Module):
    """Embeddings, layers and the last norm.

    The loop runs over groups of `period` layers: a group has one global layer of ModernBERT. The
    first group is outside the loop, because layer 0 may have no norm before attention. The last
    layers are outside as well, because the last layer computes only the states that are read.
    """

    def __init__(
        self, *, architecture: PreNormArchitecture, execution: Execution, causal: bool
    ) -> None:
        """Creates abstract parameters. For `causal`, see `HeadsSection`."""
        parts = {"architecture": architecture, "execution": execution}
        width, depth = architecture.hidden_size, architecture.num_hidden_layers
        pieces = TruncatedNormal(architecture.initializer_range, rows=architecture.vocab_size)
        size = architecture.padded_vocab_size, width
        self.word = param(size, ("vocab", "embed"), pieces, read=execution.dtype)
        if architecture.norms_embeddings:
            self.norm = norm_of(**parts)
        self.layers = stacked(PreNormLayer(**parts, causal=causal), depth=depth)
        normed = depth - architecture.norms_embeddings  # maybe all layers but the first
        if normed:
            self.attention_norms = stacked(norm_of(**parts), depth=normed)
        self.last_norm = norm_of(**parts)
        self.architecture = architecture
        self.dtype: Dtype = execution.dtype
        self.gradient_dtype = execution.sum_dtype
        self.fused = "fused" in (execution.norm, execution.ffn)
        self.remat: Remat = execution.remat
        self.unroll = execution.unroll or default_unroll(depth, on_tpu=False)

    @property
    def table(self) -> Array:
        """The embedding table, float32 [V, D]."""
        return self.word[...]

    def look_up(self, input_ids: Int[Array, "batch length"]) -> tuple[Array, Array]:
        """Returns the embeddings of tokens, and shares for the decoder, see `tied_embedding`."""
        table_VD = self.word[...]
        shares_SVD = shares_of(table_VD, self.gradient_dtype)
        return looked_up(table_VD, shares_SVD, input_ids, self.dtype)

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length hidden"] | None = None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the hidden states of `queries_BQ`, or of all tokens if there are none.

        The arguments are as for `EncoderModel.hidden`.
        """
        wanted = None if queries_BQ is None else queries_BQ.shape[1]
        if queries_BQ is not None and self.fused:
            # Pad once here: otherwise every kernel would pad its input and slice its output.
            queries_BQ = jnp.pad(queries_BQ, ((0, 0), (0, -queries_BQ.shape[1] % PACKED)))
        x_BQD, _ = self._run(batch, words_BLD, queries_BQ, dropout_key, lambda _: None)
        return self.last_norm(x_BQD[:, :wanted])

    def every_layer(
        self,
        batch: Mapping[str, Array],
        *,
        read: Callable[[Array], Array] = lambda x_BLD: x_BLD,
    ) -> Float[Array, "states batch *rest"]:
        """Returns `read` of the embeddings' output and of every layer's.

        `read` takes a state [B, L, D]. The last state is normalised. The states are
        [layers + 1, B, …].
        """
        x_BLD, states = self._run(batch, None, None, None, read)
        return states.at[-1].set(read(self.last_norm(x_BLD)))

    def attention_maps(
        self, batch: Mapping[str, Array]
    ) -> Float[Array, "layers batch heads length length"]:
        """Returns the attention probabilities, see `EncoderModel.attention_maps`."""
        architecture, turns = self.architecture, self._turns(batch)
        layers = each_layer(self._layers(None), sharing=architecture.sharing)
        maps = []
        for at, (x_BLD, (params, scale, _)) in enumerate(
            zip(self.every_layer(batch)[:-1], layers, strict=True)
        ):
            layer = nnx.merge(nnx.graphdef(self.layers), params)
            _, normed = self._normed(x_BLD, scale, at=at)
            turn, window = turns[architecture.theta_of(at)], architecture.window_of(at)
            found = layer.scores(normed, batch["segment_ids"], turn, window=window)
            maps.append(found.probabilities)
        return jnp.stack(maps)

    def _run(
        self,
        batch: Mapping[str, Array],
        words_BLD: Array | None,
        queries_BQ: Array | None,
        dropout_key: Array | None,
        read: Callable[[Array], Any],
    ) -> tuple[Array, Any]:
        """Returns the last layer's output, and what `read` returns of all states, stacked."""
        words_BLD = self.look_up(batch["input_ids"])[0] if words_BLD is None else words_BLD
        if self.architecture.norms_embeddings:
            x_BLD = embedding_norm(words_BLD, norm=self.norm, training=dropout_key is not None)
        else:
            x_BLD = words_BLD.astype(self.dtype)
        x_BLD = constrain(x_BLD, "batch", "length", "hidden")
        x_BLD = dropout(x_BLD, self.architecture.embedding_dropout, subkey(dropout_key, 0))
        call = _Call(batch["segment_ids"], self._turns(batch), queries_BQ, read)

        depth, every = self.architecture.num_hidden_layers, self.architecture.period
        first = min(every, depth)
        unrolled = dropout_key is None and self.unroll >= depth  # a scan would stack `by_layer`
        groups = 0 if unrolled else max(0, depth - first - 1) // every
        looped = groups * every
        parts = split_layers(self._layers(dropout_key), [first, looped, depth - first - looped])

        states = [jax.tree.map(lambda state: state[None], read(x_BLD))]
        x_BLD, found = self._in_turn(x_BLD, parts[0], call, start=0)
        states.append(found)
        if groups:
            of_groups = jax.tree.map(lambda x: x.reshape(groups, every, *x.shape[1:]), parts[1])
            group = functools.partial(self._in_turn, call=call, start=first)
            unroll = max(1, min(self.unroll // every, groups))
            x_BLD, found = jax.lax.scan(group, x_BLD, of_groups, unroll=unroll)
            states.append(jax.tree.map(lambda each: each.reshape(looped, *each.shape[2:]), found))
        if first < depth:
            x_BLD, found = self._in_turn(x_BLD, parts[2], call, start=first + looped)
            states.append(found)
        return x_BLD, jax.tree.map(lambda *each: jnp.concatenate(each), *states)

    def _layers(self, dropout_key: Array | None) -> Any:
        """Returns the parameters, the scale before attention and the dropout keys of all layers."""
        depth = self.architecture.num_hidden_layers
        params = gathered_params(self.layers) if self.unroll < depth else nnx.state(self.layers)
        scales = [self.attention_norms.scale[...]] if hasattr(self, "attention_norms") else []
        if self.architecture.norms_embeddings:  # layer 0 has no norm
            scales.insert(0, jnp.ones((1, self.architecture.hidden_size), jnp.float32))
        of_layers = jnp.concatenate(scales)
        key = subkey(dropout_key, 1)
        # All keys at once: XLA takes long to compile each operation that makes keys.
        keys = None if key is None else jax.random.split(key, (depth, KEYS))
        return params, of_layers, keys

    def _turns(self, batch: Mapping[str, Array]) -> dict[float, tuple[Array, Array]]:
        """Returns the rotations by their base."""
        length, columns = batch["input_ids"].shape[1], self.architecture.head_dim
        thetas = dict.fromkeys(map(self.architecture.theta_of, range(self.architecture.period)))
        return {theta: rotations(length, columns=columns, theta=theta) for theta in thetas}

    def _in_turn(
        self, x_BLD: Array, layers: Any, call: "_Call", *, start: int
    ) -> tuple[Array, Any]:
        """Returns the output of layers one after another, and what is read of each, stacked.

        `start` is the number of the first of the layers, or of a layer of the same kind.
        """
        (count,) = {len(leaf) for leaf in jax.tree.leaves(layers)}
        found = []
        for at, of_layer in enumerate(split_layers(layers, [1] * count), start=start):
            of_layer = jax.tree.map(lambda each: each[0], of_layer)
            x_BLD = REMAT[self.remat](functools.partial(self._layer, call=call, at=at))(
                x_BLD, of_layer
            )
            found.append(call.read(x_BLD))
        return x_BLD, jax.tree.map(lambda *each: jnp.stack(each), *found)

    def _normed(self, x_BLD: Array, scale: Array, *, at: int) -> tuple[Array, Array]:
        """Returns `x_BLD` for the residual sum, and the input of attention, see `pre_norm`.

        Layer 0 has no norm if embeddings have one.
        """
        if at == 0 and self.architecture.norms_embeddings:
            return x_BLD, x_BLD
        return pre_norm(x_BLD, scale, norm=self.last_norm)

    def _layer(self, x_BLD: Array, of_layer: Any, *, call: "_Call", at: int) -> Array:
        params, scale, keys = of_layer
        module = nnx.merge(nnx.graphdef(self.layers), params)
        x_BLD, normed = self._normed(x_BLD, scale, at=at)
        is_last = at == self.architecture.num_hidden_layers - 1
        return module(
            x_BLD,
            normed,
            call.segment_ids,
            call.turns[self.architecture.theta_of(at)],
            window=self.architecture.window_of(at),
            dropout_keys=keys,
            queries_BQ=call.queries_BQ if is_last else None,
        )


class _Call(NamedTuple):
    """Arguments of all layers in one forward pass."""

    segment_ids: Array
    turns: dict[float, tuple[Array, Array]]  # rotations by their base
    queries_BQ: Array | None
    read: Callable[[Array], Any]
