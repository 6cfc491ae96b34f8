"""The attention of every layer and head over one sentence: small maps, one of them enlarged."""

import base64
import gzip
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.charts import Spec, chart_spec
from bert_jax.report.rendering import clip

TOKENS: Final = 96  # shown of one example
NAME: Final = 14  # letters of a token beside the map
SCALE: Final = (0, 0.01, 0.1, 0.3, 1)  # weights in the legend


class AttentionExample(NamedTuple):
    """One text and its attention weights."""

    tokens: Sequence[str]
    weights: np.ndarray  # float [layers, heads, tokens, tokens]: layer, head, query, key
    title: str = ""  # what the text is


class AttentionMaps(NamedTuple):
    """An example for the template."""

    title: str
    tokens: Sequence[str]
    omitted: int  # tokens beyond `TOKENS`
    descriptions: Sequence[Sequence[str]]  # [layers][heads]
    levels: str
    """Square roots of the weights as uint8 [layers, heads, tokens, tokens], gzip in base64."""
    spec: Spec


def attention_example(
    tokens: Sequence[str], weights: np.ndarray, *, title: str = ""
) -> AttentionExample:
    """Returns an example from one row of `attention_maps`, its padding cut off.

    The tokens are the row's, without padding; the weights are float [layers, heads, L, L], whose L
    may count padding. Raises ValueError for weights of another shape, or not of these tokens: what
    lies beyond the tokens is not 0, or a token's weights do not sum to 1.
    """
    size = len(tokens)
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or weights.shape[2] < size:
        raise ValueError(f"found weights {weights.shape} for {size} tokens")
    inside = np.asarray(weights[:, :, :size, :size], np.float32)
    if weights[:, :, :size, size:].any() or np.abs(inside.sum(-1) - 1).max() > 1e-2:
        raise ValueError(f"found weights that are not those of {size} tokens")
    return AttentionExample(tuple(tokens), inside, title)


def attention_view(example: AttentionExample) -> AttentionMaps:
    """Returns the maps of every head of an `attention_example`, with a description of each."""
    tokens = [str(token) for token in example.tokens[:TOKENS]]
    weights = example.weights[:, :, : len(tokens), : len(tokens)]
    levels = np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return AttentionMaps(
        title=example.title or clip(" ".join(tokens), 120),
        tokens=tokens,
        omitted=len(example.tokens) - len(tokens),
        descriptions=[
            [_describe(tokens, head, f"Layer {at + 1}, head {h + 1}") for h, head in enumerate(own)]
            for at, own in enumerate(weights)
        ],
        levels=base64.b64encode(gzip.compress(levels.tobytes(), 9, mtime=0)).decode(),
        spec=chart_spec("weights", tokens=[clip(token, NAME) for token in tokens]),
    )


def _describe(tokens: Sequence[str], weights: np.ndarray, name: str) -> str:
    """What a head attends to, in words."""
    size = len(tokens)
    query, key = divmod(int(weights.argmax()), size)
    shares = {
        "itself": float(np.trace(weights)) / size,
        "the token before": float(np.trace(weights, offset=-1)) / size,
        "the token after": float(np.trace(weights, offset=1)) / size,
        f"the first ({clip(tokens[0], NAME)})": float(weights[:, 0].sum()) / size,
        f"the last ({clip(tokens[-1], NAME)})": float(weights[:, -1].sum()) / size,
    }
    kind, share = max(shares.items(), key=lambda item: item[1])
    return (
        f"{name}: {share:.0%} on {kind}; most from "
        f'"{clip(tokens[query], NAME)}" to "{clip(tokens[key], NAME)}" ({weights[query, key]:.2f})'
    )
