"""Which layers make a feature, and how they are put together."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from bert_jax.errors import UserError, did_you_mean

MIX: Final = "mix"
DEFAULT: Final = "concat-last-four"
NAMES: Final = (
    "embeddings",
    "second-to-last",
    "last",
    "sum-last-four",
    DEFAULT,
    "sum-all",
)


class Layers(NamedTuple):
    """States of a model, 0 for the embeddings' output, and how they become one vector."""

    name: str
    states: tuple[int, ...]
    how: Literal["concat", "sum", "stack"]

    def width(self, hidden_size: int) -> int:
        """Numbers in the vectors of one piece."""
        return hidden_size if self.how == "sum" else hidden_size * len(self.states)


def parse_layers(text: str, *, depth: int) -> Layers:
    """Returns what a name or a list of numbers stands for.

    ``parse_layers("concat-last-four", depth=12)`` -> states 9, 10, 11, 12, side by side, the lowest
    first. The names are the rows of arXiv 1810.04805, table 7; "sum-all" is its "weighted sum all
    12 layers" with equal weights, and leaves the embeddings out as that does. ``"0,3"`` puts the
    embeddings' output and the third layer's side by side. ``"mix"`` is every state, for a probe
    that learns their weights.

    Args:
        text: of `--layers`.
        depth: layers of the model.

    Raises:
        UserError: no such name, or a layer that the model lacks.
    """
    last_four = tuple(range(depth - 3, depth + 1))
    named: dict[str, Layers] = {
        "embeddings": Layers(text, (0,), "concat"),
        "second-to-last": Layers(text, (depth - 1,), "concat"),
        "last": Layers(text, (depth,), "concat"),
        "sum-last-four": Layers(text, last_four, "sum"),
        DEFAULT: Layers(text, last_four, "concat"),
        "sum-all": Layers(text, tuple(range(1, depth + 1)), "sum"),
        MIX: Layers(text, tuple(range(depth + 1)), "stack"),
    }
    if text in named:
        found = named[text]
        if "last-four" in text and depth < 4:
            raise UserError(
                f'--layers: found "{text}", but the model has {depth} layers; allowed: last, '
                f"sum-all, or numbers from 0 to {depth} with commas between"
            )
        return found
    numbers = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in numbers):
        allowed = [*NAMES, MIX]
        raise UserError(
            f'--layers: found "{text}", allowed: {", ".join(allowed)}, or numbers from 0 (the '
            f"embeddings) to {depth} with commas between{did_you_mean(text, allowed)}"
        )
    states = tuple(map(int, numbers))
    for state in states:
        if state > depth:
            raise UserError(
                f"--layers: found {state}, allowed: 0 (the embeddings) to {depth}, the last layer"
            )
    return Layers(text, states, "concat")


def combine(states: Array, layers: Layers) -> Array:
    """Returns one vector [..., width] from states [layers + 1, ..., D], in float32."""
    chosen = states[jnp.asarray(layers.states)].astype(jnp.float32)
    if layers.how == "sum":
        return chosen.sum(axis=0)
    return jnp.concatenate(list(chosen), axis=-1)
