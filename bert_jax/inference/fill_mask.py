"""The most probable pieces for each [MASK] of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.rows.collate import collate_tokens, pad_rows
from bert_jax.errors import UserError
from bert_jax.inference.bucketed import BucketedInference
from bert_jax.runs.directory import Run, describe
from bert_jax.runs.parameters import load_params
from bert_jax.task import Batch, Row
from bert_jax.text import Tokenizer

MASK: Final = "[MASK]"
BATCH_SIZE: Final = 32


class Candidate(NamedTuple):
    """A piece and its probability."""

    piece: str
    probability: float


class Filled(NamedTuple):
    """A text and, for each of its masks, the candidates, best first."""

    text: str
    masks: list[list[Candidate]]


def fill_masks(run: Run, texts: Sequence[str], *, top_k: int, checkpoint: str) -> list[Filled]:
    """Returns the candidates for every [MASK] of every text, see `bert_jax.fill_mask`."""
    tokenizer = run.tokenizer
    if not run.heads.mlm:
        raise UserError(
            f"fill-mask: {run.directory} has {describe(run.heads)}, so it cannot say which word is "
            f"missing; allowed: a run with an MLM head"
        )
    encoded = [_encode(text, tokenizer) for text in texts]
    longest = max(map(len, encoded), default=0)
    positions = run.architecture.max_position_embeddings
    if longest > positions:
        raise UserError(f"fill-mask: a text has {longest} pieces, allowed: up to {positions}")
    if not 1 <= top_k <= tokenizer.vocab_size:
        raise UserError(
            f"--top-k: found {top_k}, allowed: 1 to {tokenizer.vocab_size}, the vocabulary"
        )
    masks = [np.flatnonzero(np.equal(ids, tokenizer.special.mask)) for ids in encoded]
    most_masks = max(map(len, masks), default=0)

    def make_batch(rows: np.ndarray, *, batch_size: int, length: int) -> Row:
        batch = collate_tokens(
            [encoded[row] for row in rows],
            batch_size=batch_size,
            length=length,
            pad_id=tokenizer.special.pad,
        )
        batch["masked_lm_positions"] = pad_rows(
            [masks[row] for row in rows], batch_size=batch_size, length=most_masks
        )
        return batch

    loaded = load_params(run, checkpoint=checkpoint)

    def forward(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns probabilities and ids, [B, masks, top_k]."""
        model = nnx.merge(loaded.model.graphdef, params)
        hidden = model.hidden(batch, dropout_key=None)
        logits = model.mlm_logits(hidden, batch["masked_lm_positions"])
        # No text contains the special pieces.
        logits = logits.at[..., jnp.asarray(list(tokenizer.special))].set(-jnp.inf)
        return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), top_k)

    inference = BucketedInference(
        forward, loaded.mesh, batch_size=min(BATCH_SIZE, len(encoded)), max_length=positions
    )
    filled: dict[int, list[list[Candidate]]] = {}
    for batch in inference(loaded.params, list(map(len, encoded)), make_batch):
        for row, probabilities, ids in zip(batch.rows.tolist(), *batch.outputs, strict=True):
            candidates = [
                list(map(Candidate, tokenizer.pieces(of_mask.tolist()), chances.tolist()))
                for of_mask, chances in zip(ids, probabilities, strict=True)
            ]
            filled[row] = candidates[: len(masks[row])]
    return [Filled(text, filled[row]) for row, text in enumerate(texts)]


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """Returns ``[CLS] text [SEP]``; the tokenizer itself would take [MASK] for ordinary text."""
    parts = text.split(MASK)
    if len(parts) == 1:
        raise UserError(f'fill-mask: "{text}" has no {MASK} in it, allowed: one or more')
    ids = [tokenizer.special.cls, *tokenizer.encode(parts[0])]
    for part in parts[1:]:
        ids += [tokenizer.special.mask, *tokenizer.encode(part)]
    return [*ids, tokenizer.special.sep]
