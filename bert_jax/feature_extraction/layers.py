"""Which layers a feature is computed from, and how they are combined."""

from typing import Final, NamedTuple

import jax.numpy as jnp
from jax import Array

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.read import is_whole

MIX: Final = "mix"
LAST_FOUR: Final = "concat-last-four"


class LayerSelection(NamedTuple):
    """States of a model (0 is the embeddings' output) that become one vector."""

    name: str
    states: tuple[int, ...]
    summed: bool = False  # otherwise concatenated

    def width(self, hidden_size: int) -> int:
        """Numbers in a vector."""
        return hidden_size if self.summed else hidden_size * len(self.states)

    def combine(self, states: Array) -> Array:
        """Returns one vector [..., width] from states [layers + 1, ..., D], in float32."""
        chosen = states[jnp.asarray(self.states)].astype(jnp.float32)
        return chosen.sum(axis=0) if self.summed else jnp.concatenate(list(chosen), axis=-1)


def select_layers(text: str | None, *, depth: int) -> LayerSelection:
    """Returns the layers that a name or a list of numbers means.

    None: the best row of the paper's table that a model of `depth` layers can have.

    ``select_layers("concat-last-four", depth=12)`` -> states 9, 10, 11, 12, concatenated, lowest
    first. The names are the rows of arXiv 1810.04805, table 7; "sum-all" is its "weighted sum all
    12 layers" with equal weights, without the embeddings as there. ``"0,3"`` concatenates the
    embeddings' output and the third layer's. ``"mix"`` is every state, for a probe that learns
    their weights. Raises UserError: no such name, or a layer that the model lacks.
    """
    text = text or (LAST_FOUR if depth >= 4 else "last")
    last_four = tuple(range(depth - 3, depth + 1))
    named = {
        "embeddings": LayerSelection(text, (0,)),
        "second-to-last": LayerSelection(text, (depth - 1,)),
        "last": LayerSelection(text, (depth,)),
        "sum-last-four": LayerSelection(text, last_four, summed=True),
        LAST_FOUR: LayerSelection(text, last_four),
        "sum-all": LayerSelection(text, tuple(range(1, depth + 1)), summed=True),
        MIX: LayerSelection(text, tuple(range(depth + 1))),
    }
    if text in named:
        if "last-four" in text and depth < 4:
            raise UserError(
                f'--layers: found "{text}", but the model has {depth} layers; allowed: last, '
                f"sum-all, or numbers from 0 to {depth} with commas between"
            )
        return named[text]
    numbers = [part.strip() for part in text.split(",")]
    if not all(map(is_whole, numbers)):
        raise UserError(
            f'--layers: found "{text}", allowed: {", ".join(named)}, or numbers from 0 (the '
            f"embeddings) to {depth} with commas between{did_you_mean(text, list(named))}"
        )
    states = tuple(map(int, numbers))
    if max(states) > depth:
        raise UserError(
            f"--layers: found {max(states)}, allowed: 0 (the embeddings) to {depth}, the last layer"
        )
    return LayerSelection(text, states)
