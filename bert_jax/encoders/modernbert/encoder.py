"""ModernBERT's stack of layers.

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

from bert_jax.encoders.modernbert.local_attention import is_short, local_attention
from bert_jax.encoders.modernbert.rotary import rotated, rotations
from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.kernels.pallas_call import PACKED
from bert_jax.kernels.rotary_attention import rotary_attention
from bert_jax.model.add_norm import pre_norm
from bert_jax.model.dropout import dropout
from bert_jax.model.geglu_project import geglu_project
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layer_stack import (
    REMAT,
    default_unroll,
    each_layer,
    gathered_params,
    split_layers,
    stacked,
)
from bert_jax.model.layers import (
    ACTIVATIONS,
    Linear,
    ScaledNorm,
    gather_positions,
    param,
    project_each,
    subkey,
)
from bert_jax.model.section import Execution, Implementation, Remat
from bert_jax.model.tied_embedding import looked_up, shares_of
from bert_jax.model.xla_attention import (
    ScoreFunction,
    Scores,
    attention_scores,
    xla_attention,
)
from bert_jax.parallel.sharding_rules import constrain

_KEYS = 3  # dropout keys of a layer: attention weights, attention output, FFN


class ModernBertLayer(nnx.Module):
    """Attention and GeGLU, each added to its input (pre-LayerNorm), without biases."""

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, causal: bool
    ) -> None:
        width, inner = architecture.hidden_size, architecture.intermediate_size
        heads, columns = architecture.num_attention_heads, architecture.head_dim
        parts = {"architecture": architecture, "execution": execution}
        dense = functools.partial(Linear, **parts)
        last = functools.partial(dense, deviation=architecture.output_range)
        self.query, self.key, self.value = (
            dense((width, heads, columns), ("embed", "heads", "head_dim"), outputs=2)
            for _ in range(3)
        )
        self.output = last((heads, columns, width), ("heads", "head_dim", "embed"))
        self.ffn_norm = ScaledNorm(**parts)
        self.gate, self.up = (dense((width, inner), ("embed", "mlp")) for _ in range(2))
        self.down = last((inner, width), ("mlp", "embed"))
        self.architecture = architecture
        self.causal = causal
        self.core: Implementation = execution.attention
        self.fused_ffn = execution.ffn == "fused"
        self.remat_core = execution.remat == "attention"

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        normed_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        turn: tuple[Array, Array],
        *,
        is_global: bool,
        dropout_keys: Array | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the layer's output for `queries_BQ`, or for all tokens if there are none.

        `normed_BLD` is what attention reads, `turn` the rotations of `is_global` layers or of local
        layers. `dropout_keys` are [3], or None in evaluation.
        """
        weights_key, output_key, ffn_key = [None] * _KEYS if dropout_keys is None else dropout_keys
        window = None if is_global else self.architecture.window
        attended = self._attended(normed_BLD, segment_ids, turn, weights_key, window)
        if queries_BQ is not None:
            x_BLD, attended = (gather_positions(x, queries_BQ) for x in (x_BLD, attended))
        by_head = attended.reshape(*attended.shape[:2], -1, self.architecture.head_dim)
        attended = dropout(
            self.output.without_bias(by_head), self.architecture.attention_dropout, output_key
        )
        x_BQD = constrain(x_BLD + attended, "batch", "length", "hidden")
        x_BQD, normed_BQD = pre_norm(x_BQD, self.ffn_norm.scale[...], norm=self.ffn_norm)
        fed_BQD = self._fed(normed_BQD, ffn_key)
        return constrain(x_BQD + fed_BQD, "batch", "length", "hidden")

    def _attended(
        self,
        x_BLD: Array,
        segment_ids: Array,
        turn: tuple[Array, Array],
        key: Array | None,
        window: int | None,
    ) -> Array:
        """Returns the sums over values, [B, L, H · K]."""
        columns, rate = self.architecture.head_dim, self.architecture.attention_dropout
        kernels = tuple(each.kernel[...] for each in (self.query, self.key, self.value))
        products: Any = project_each(x_BLD.astype(self.query.dtype), kernels, self.query.use)
        if self.core == "fused":
            return rotary_attention(
                products, segment_ids, turn, columns=columns, window=window, causal=self.causal
            )

        def by_head(y_BLW: Array) -> Array:
            y_BLHK = y_BLW.reshape(*y_BLW.shape[:2], -1, columns)
            return constrain(y_BLHK, "batch", "length", "heads", "head_dim")

        q, k, v = map(by_head, products)
        core: Any = functools.partial(
            xla_attention, window=window, dropout_rate=rate, causal=self.causal
        )
        if window is not None and not is_short(x_BLD.shape[1], window):
            core = functools.partial(
                local_attention, window=window, dropout_rate=rate, causal=self.causal
            )
        elif self.remat_core:
            core = jax.checkpoint(core)
        attended = core(rotated(q, turn), rotated(k, turn), v, segment_ids, dropout_key=key)
        return attended.reshape(x_BLD.shape[0], x_BLD.shape[1], -1)

    def _fed(self, x_BLD: Array, key: Array | None) -> Array:
        gate_BLF = constrain(self.gate(x_BLD), "batch", "length", "mlp")
        up_BLF = constrain(self.up(x_BLD), "batch", "length", "mlp")
        if self.fused_ffn:
            return geglu_project(gate_BLF, up_BLF, self.down.kernel[...], use=self.down.use)

        def project(gate: Array, up: Array) -> Array:
            inner = ACTIVATIONS[self.architecture.hidden_act](gate) * up
            return self.down(dropout(inner, self.architecture.mlp_dropout, key))

        # In bfloat16, so on a chip, computing the activation again costs less than reading it.
        again = jax.checkpoint if gate_BLF.dtype == jnp.bfloat16 else lambda function: function
        return again(project)(gate_BLF, up_BLF)


class ModernBertEncoder(nnx.Module):
    """Embeddings, layers and the last LayerNorm.

    The loop runs over groups of `global_every` layers, because each group has one global layer. The
    first group is outside the loop, because layer 0 has no LayerNorm before attention. The last
    layers are outside as well, because the last layer computes only the states that are read.
    """

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, causal: bool
    ) -> None:
        """Creates abstract parameters. For `causal`, see `HeadsSection`."""
        parts = {"architecture": architecture, "execution": execution}
        width, depth = architecture.hidden_size, architecture.num_hidden_layers
        pieces = TruncatedNormal(architecture.initializer_range, rows=architecture.vocab_size)
        self.word = param((architecture.padded_vocab_size, width), ("vocab", "embed"), pieces)
        self.norm = ScaledNorm(**parts)
        self.layers = stacked(ModernBertLayer(**parts, causal=causal), depth=depth)
        if depth > 1:  # of all layers but the first
            self.attention_norms = stacked(ScaledNorm(**parts), depth=depth - 1)
        self.last_norm = ScaledNorm(**parts)
        self.architecture = architecture
        self.causal = causal
        self.gradient_dtype = execution.gradient_dtype
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
        return looked_up(table_VD, shares_of(table_VD, self.gradient_dtype), input_ids)

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
        words_BLD: Array | None = None,
        read: Callable[[Array], Array] = lambda x_BLD: x_BLD,
        dropout_key: Array | None = None,
    ) -> Float[Array, "states batch *rest"]:
        """Returns `read` of the embeddings' output and of every layer's.

        `read` takes a state [B, L, D]. The last state is normalised. The states are
        [layers + 1, B, …].
        """
        x_BLD, states = self._run(batch, words_BLD, None, dropout_key, read)
        return states.at[-1].set(read(self.last_norm(x_BLD)))

    def attention_maps(
        self, batch: Mapping[str, Array]
    ) -> Float[Array, "layers batch heads length length"]:
        """Returns the attention probabilities, see `EncoderModel.attention_maps`."""
        functions, states = self.score_functions(batch), self.every_layer(batch)[:-1]
        return jnp.stack(
            [scores(x_BLD).probabilities for scores, x_BLD in zip(functions, states, strict=True)]
        )

    def score_functions(self, batch: Mapping[str, Array]) -> list[ScoreFunction]:
        """Returns a function for each layer, see `Encoder`."""
        architecture, turns = self.architecture, self._turns(batch)

        def scores(x_BLD: Array, *, at: int, of_layer: Any) -> Scores:
            params, scale, _ = of_layer
            layer, is_global = (
                nnx.merge(nnx.graphdef(self.layers), params),
                architecture.is_global(at),
            )
            _, normed = self._normed(x_BLD, scale, at=at)
            q_BLHK, k_BLHK = (
                rotated(each(normed), turns[is_global]) for each in (layer.query, layer.key)
            )
            window = None if is_global else architecture.window
            segment_ids = batch["segment_ids"]
            return attention_scores(q_BLHK, k_BLHK, segment_ids, window=window, causal=self.causal)

        layers = each_layer(self._layers(None), sharing=architecture.sharing)
        return [
            functools.partial(scores, at=at, of_layer=of_layer)
            for at, of_layer in enumerate(layers)
        ]

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
        x_BLD = constrain(self.norm(words_BLD), "batch", "length", "hidden")
        x_BLD = dropout(x_BLD, self.architecture.embedding_dropout, subkey(dropout_key, 0))
        call = _Call(batch["segment_ids"], self._turns(batch), queries_BQ, read)

        depth, every = self.architecture.num_hidden_layers, self.architecture.global_every
        first = min(every, depth)
        groups = max(0, depth - first - 1) // every
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
        scales = jnp.ones((1, self.architecture.hidden_size), jnp.float32)  # layer 0 has no norm
        if depth > 1:
            scales = jnp.concatenate([scales, self.attention_norms.scale[...]])
        key = subkey(dropout_key, 1)
        # All keys at once: XLA takes long to compile each operation that makes keys.
        keys = None if key is None else jax.random.split(key, (depth, _KEYS))
        return params, scales, keys

    def _turns(self, batch: Mapping[str, Array]) -> dict[bool, tuple[Array, Array]]:
        """Returns the rotations of global and of local layers."""
        length = batch["input_ids"].shape[1]
        thetas = {True: self.architecture.global_theta, False: self.architecture.local_theta}
        columns = self.architecture.head_dim
        return {key: rotations(length, columns=columns, theta=thetas[key]) for key in thetas}

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

        Layer 0 has no LayerNorm, because embeddings have one.
        """
        return (x_BLD, x_BLD) if at == 0 else pre_norm(x_BLD, scale, norm=self.norm)

    def _layer(self, x_BLD: Array, of_layer: Any, *, call: "_Call", at: int) -> Array:
        params, scale, keys = of_layer
        module = nnx.merge(nnx.graphdef(self.layers), params)
        x_BLD, normed = self._normed(x_BLD, scale, at=at)
        is_last = at == self.architecture.num_hidden_layers - 1
        is_global = self.architecture.is_global(at)
        return module(
            x_BLD,
            normed,
            call.segment_ids,
            call.turns[is_global],
            is_global=is_global,
            dropout_keys=keys,
            queries_BQ=call.queries_BQ if is_last else None,
        )


class _Call(NamedTuple):
    """Arguments of all layers in one forward pass."""

    segment_ids: Array
    turns: dict[bool, tuple[Array, Array]]  # rotations of global and of local layers
    queries_BQ: Array | None
    read: Callable[[Array], Any]
