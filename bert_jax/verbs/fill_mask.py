"""`bert-jax fill-mask`: the most probable words for each [MASK]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.console import Console

from bert_jax.errors import UserError
from bert_jax.runs.directory import describe, open_run
from bert_jax.runs.parameters import LoadedParams, load_params
from bert_jax.text import Tokenizer

MASK: Final = "[MASK]"


class Candidate(NamedTuple):
    """A piece and its probability."""

    piece: str
    probability: float


class Filled(NamedTuple):
    """A sentence and, for each of its masks, the best candidates first."""

    text: str
    masks: list[list[Candidate]]


def fill_mask(
    run_dir: str,
    texts: Sequence[str],
    *,
    top_k: int = 5,
    checkpoint: str = "auto",
    console: Console | None = None,
) -> list[Filled]:
    """Returns the most probable pieces for every [MASK] of every text.

    Args:
        run_dir: of `pretrain`, or of `import` with an MLM head.
        texts: each with one [MASK] or more.
        top_k: candidates per mask.
        checkpoint: `last`, `best`, a step, or `auto`: the best of a fine-tuned run, else the last.
        console: where the result is shown; None shows nothing.

    Raises:
        UserError: a text without [MASK], or longer than the model's positions; no such run.
    """
    run = open_run(run_dir)
    if not run.heads.mlm:
        raise UserError(
            f"fill-mask: {run_dir} has {describe(run.heads)}, so it cannot say which word is "
            f"missing; allowed: a run with an MLM head"
        )
    rows = [_encode(text, run.tokenizer) for text in texts]
    longest = max(map(len, rows), default=0)
    positions = run.architecture.max_position_embeddings
    if longest > positions:
        raise UserError(f"fill-mask: a text has {longest} pieces, allowed: up to {positions}")
    if not 1 <= top_k <= run.tokenizer.vocab_size:
        raise UserError(
            f"--top-k: found {top_k}, allowed: 1 to {run.tokenizer.vocab_size}, the vocabulary"
        )
    loaded = load_params(run, checkpoint=checkpoint)
    probabilities, pieces = _predict(loaded, rows, run.tokenizer, top_k=top_k)
    filled = []
    for number, (text, row) in enumerate(zip(texts, rows, strict=True)):
        masks = [
            [
                Candidate(run.tokenizer.pieces([int(piece)])[0], float(probability))
                for piece, probability in zip(
                    pieces[number, slot], probabilities[number, slot], strict=True
                )
            ]
            for slot in range(row.count(run.tokenizer.special.mask))
        ]
        filled.append(Filled(text, masks))
    if console is not None:
        _show(filled, console)
    return filled


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """Returns ``[CLS] text [SEP]``; the tokenizer takes a written [MASK] for ordinary text."""
    parts = text.split(MASK)
    if len(parts) == 1:
        raise UserError(f'fill-mask: "{text}" has no {MASK} in it, allowed: one or more')
    ids = [tokenizer.special.cls, *tokenizer.encode(parts[0])]
    for part in parts[1:]:
        ids += [tokenizer.special.mask, *tokenizer.encode(part)]
    return [*ids, tokenizer.special.sep]


def _predict(
    loaded: LoadedParams, rows: Sequence[Sequence[int]], tokenizer: Tokenizer, *, top_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities and ids [texts, masks, top_k], masks padded to the most of any text."""
    length = -(-max(map(len, rows)) // 8) * 8
    slots = max(row.count(tokenizer.special.mask) for row in rows)
    batch = {
        "input_ids": np.full((len(rows), length), tokenizer.special.pad, np.int32),
        "token_type_ids": np.zeros((len(rows), length), np.int32),
        "segment_ids": np.zeros((len(rows), length), np.int32),
        "masked_lm_positions": np.zeros((len(rows), slots), np.int32),
    }
    for number, row in enumerate(rows):
        batch["input_ids"][number, : len(row)] = row
        batch["segment_ids"][number, : len(row)] = 1
        at = np.flatnonzero(np.equal(row, tokenizer.special.mask))
        batch["masked_lm_positions"][number, : len(at)] = at

    def predict(params: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(loaded.model.graphdef, params)
        hidden = model.hidden(batch, dropout_key=None)
        logits = model.mlm_logits(hidden, batch["masked_lm_positions"])
        # The special pieces stand in no text: no candidates.
        banned = jnp.asarray(list(tokenizer.special))
        logits = logits.at[..., banned].set(-jnp.inf)
        return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), top_k)

    return jax.device_get(jax.jit(predict)(loaded.params, batch))


def _show(filled: Sequence[Filled], console: Console) -> None:
    for text, masks in filled:
        console.print(text, style="bold", markup=False, soft_wrap=True)
        for candidates in masks:
            shown = "  ".join(f"{piece} {chance:.1%}" for piece, chance in candidates)
            console.print(f"  {shown}", markup=False, highlight=False, soft_wrap=True)
