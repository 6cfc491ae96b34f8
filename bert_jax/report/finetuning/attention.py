"""Attention maps of every layer and head for one example."""

import base64
import gzip
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.report.charts import Spec, chart_spec
from bert_jax.report.rendering import clip

TOKENS: Final = 96  # maximum number of tokens in a map
NAME: Final = 14  # maximum number of characters in a token's axis label
SCALE: Final = (0, 0.01, 0.1, 0.3, 1)  # attention weights in the legend


class AttentionMaps(NamedTuple):
    """The attention maps of an example."""

    title: str
    tokens: Sequence[str]
    omitted: int  # number of tokens after the first `TOKENS`
    descriptions: Sequence[Sequence[str]]  # [layers][heads]
    # Square roots of the weights, uint8 [layers, heads, tokens, tokens], gzipped, in base64.
    levels: str
    spec: Spec


def attention_view(tokens: Sequence[str], weights: np.ndarray, *, title: str = "") -> AttentionMaps:
    """Returns the map of every head, with a description. `weights` are a row of `attention_maps`.

    `tokens` are the row's tokens without padding. `weights` are float [layers, heads, queries,
    keys] and may include padding.
    """
    shown = tokens[:TOKENS]
    weights = np.asarray(weights[:, :, : len(shown), : len(shown)], np.float32)
    levels = np.round(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return AttentionMaps(
        title=title or clip(" ".join(shown), 120),
        tokens=shown,
        omitted=len(tokens) - len(shown),
        descriptions=[
            [_describe(shown, head, f"Layer {at + 1}, head {h + 1}") for h, head in enumerate(own)]
            for at, own in enumerate(weights)
        ],
        levels=base64.b64encode(gzip.compress(levels.tobytes(), 9, mtime=0)).decode(),
        spec=chart_spec("weights", tokens=[clip(token, NAME) for token in shown]),
    )


def _describe(tokens: Sequence[str], weights: np.ndarray, name: str) -> str:
    """Describes which tokens a head attends to."""
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
