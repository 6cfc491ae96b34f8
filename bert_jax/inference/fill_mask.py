"""Predicts the most probable pieces for each [MASK] of a text."""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.data.rows.collate import collate_tokens, pad_rows
from bert_jax.errors import UserError
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.parallel.compiling import made_once
from bert_jax.runs.settings import require_mlm_head
from bert_jax.task import Batch, Row
from bert_jax.text import Tokenizer
from bert_jax.train.state import ModelDefinition

BATCH_SIZE: Final = 32


class Candidate(NamedTuple):
    """A piece and its probability."""

    piece: str
    probability: float


class Filled(NamedTuple):
    """A text, and the candidates for each of its masks, best first."""

    text: str
    masks: list[list[Candidate]]


class MaskFiller:
    """Predicts candidates for every [MASK]. Compiles once per batch shape."""

    def __init__(self, model: InferenceModel, *, top_k: int) -> None:
        """Raises UserError if the model has no MLM head or `top_k` is out of range."""
        require_mlm_head(model.heads, name=model.name)
        if not 1 <= top_k <= model.tokenizer.vocab_size:
            raise UserError(
                "fill_mask.top_k",
                f"found {top_k}, allowed: 1 to {model.tokenizer.vocab_size}, the size of the "
                "vocabulary",
                place="--top-k",
            )
        self._tokenizer, self._params = model.tokenizer, model.loaded.params
        self._positions = model.architecture.max_position_embeddings
        special, pieces = tuple(model.tokenizer.special), model.tokenizer.vocab_size
        self._inference = model.batches(
            _forward(model.loaded.model, special, top_k, pieces=pieces),
            batch_size=BATCH_SIZE,
            max_length=self._positions,
            few_rows=True,
        )

    def __call__(self, texts: Sequence[str]) -> list[Filled]:
        """Returns the candidates for every [MASK], in the order of `texts`.

        Raises UserError if a text has no [MASK], or more pieces than the model has positions.
        """
        filled = self.fill([_encode(text, self._tokenizer) for text in texts])
        return list(map(Filled, texts, filled))

    def fill(self, encoded: Sequence[Sequence[int]]) -> list[list[list[Candidate]]]:
        """Returns the candidates for every mask of every text, given as ids.

        Raises UserError if a text has more pieces than the model has positions.
        """
        longest = max(map(len, encoded), default=0)
        if longest > self._positions:
            raise UserError(
                "fill_mask.too_long",
                f"found a text of {longest} pieces, allowed: up to {self._positions}",
                place="fill-mask",
            )
        masks = [np.flatnonzero(np.equal(ids, self._tokenizer.special.mask)) for ids in encoded]
        # Pad the number of masks to a power of two, so that few shapes are compiled.
        most = 1 << (max(map(len, masks), default=1) - 1).bit_length()

        def make_batch(rows: np.ndarray, *, batch_size: int, length: int) -> Row:
            batch = collate_tokens(
                [encoded[row] for row in rows],
                batch_size=batch_size,
                length=length,
                pad_id=self._tokenizer.special.pad,
            )
            batch["masked_lm_positions"] = pad_rows(
                [masks[row] for row in rows], batch_size=batch_size, length=most
            )
            return batch

        filled: dict[int, list[list[Candidate]]] = {}
        for batch in self._inference(self._params, list(map(len, encoded)), make_batch):
            for row, probabilities, ids in zip(batch.rows.tolist(), *batch.outputs, strict=True):
                candidates = [
                    list(map(Candidate, self._tokenizer.texts(found.tolist()), chances.tolist()))
                    for found, chances in zip(ids, probabilities, strict=True)
                ]
                filled[row] = candidates[: len(masks[row])]
        return [filled[row] for row in range(len(encoded))]


@made_once
def _forward(
    model: ModelDefinition, special: tuple[int, ...], top_k: int, *, pieces: int
) -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
    def forward(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns probabilities and ids, [B, masks, top_k]."""
        bert = nnx.merge(model.graphdef, params)
        hidden = bert.hidden(batch, dropout_key=None)
        logits = bert.mlm_logits(hidden, batch["masked_lm_positions"])
        # Exclude special pieces, and padding rows of the embedding table.
        logits = logits[..., :pieces].at[..., jnp.asarray(special)].set(-jnp.inf)
        return jax.lax.top_k(jax.nn.softmax(logits, axis=-1), top_k)

    return forward


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of ``[CLS] text [SEP]``."""
    return [tokenizer.special.cls, *tokenizer.encode_masked(text), tokenizer.special.sep]
