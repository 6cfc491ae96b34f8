"""Runs train steps of Hugging Face's Flax BERT on request, for `benchmarks.train_step`.

It runs under a separate Python with transformers 4.56, flax and optax, and imports no module of
this project. Each line on standard input is a number of steps. After running them the process
prints ``done``.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from transformers import BertConfig, FlaxBertForPreTraining  # pyright: ignore


def main() -> None:
    """Compiles at the first request and serves requests until standard input ends."""
    layers, hidden, rows, length, predictions, vocab = map(int, sys.argv[1:])
    config = make_config(layers=layers, hidden=hidden, vocab=vocab)
    model = FlaxBertForPreTraining(config, seed=0, input_shape=(1, length))
    optimizer = make_optimizer()
    params = jax.tree.map(jnp.asarray, model.params)
    state = (params, optimizer.init(params), jax.random.key(0))
    step = jax.jit(make_step(model, optimizer), donate_argnums=0)
    batch = make_batch(rows, length, predictions, vocab)
    for line in sys.stdin:
        for _ in range(int(line)):
            state, _ = step(state, batch)
        jax.block_until_ready(state)
        print("done", flush=True)


def make_config(*, layers: int, hidden: int, vocab: int, dropout: float = 0.1) -> BertConfig:
    """Returns a BERT configuration of the given size, with heads of 64."""
    return BertConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def make_optimizer() -> optax.GradientTransformation:
    """Returns AdamW with the gradient norm clipped at 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01))


def make_batch(rows: int, length: int, predictions: int, vocab: int) -> tuple[jax.Array, ...]:
    """Returns full rows, labels that are -1 at unmasked positions, and next-sentence labels."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, vocab, (rows, length), dtype=np.int32)
    labels = np.full(ids.shape, -1, np.int32)
    for row in range(rows):
        chosen = rng.permutation(length)[:predictions]
        labels[row, chosen] = ids[row, chosen]
    return jnp.asarray(ids), jnp.asarray(labels), jnp.asarray(rng.integers(0, 2, rows))


def make_step(model: Any, optimizer: optax.GradientTransformation) -> Any:
    """Returns the step of transformers' own pretraining example, with NSP added."""

    def step(state: Any, batch: tuple[jax.Array, ...]) -> Any:
        params, opt_state, key = state
        key, dropout_key = jax.random.split(key)
        ids, labels, next_sentence = batch

        def loss(params: Any) -> jax.Array:
            output = model(
                input_ids=ids,
                attention_mask=jnp.ones_like(ids),
                token_type_ids=jnp.zeros_like(ids),
                params=params,
                dropout_rng=dropout_key,
                train=True,
            )
            nll = optax.softmax_cross_entropy_with_integer_labels
            weights = labels >= 0
            mlm = nll(output.prediction_logits, jnp.maximum(labels, 0)) * weights
            return (
                mlm.sum() / weights.sum()
                + nll(output.seq_relationship_logits, next_sentence).mean()
            )

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, key), value

    return step


if __name__ == "__main__":
    main()
