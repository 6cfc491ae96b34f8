"""Exponentially smoothed sampling of languages.

Source: multilingual BERT's README (google-research/bert, ``multilingual.md``): the share of a
language in the corpus is taken to the power of S = 0.7 and renormalised, for the vocabulary and for
the examples.
"""

import math
from collections.abc import Mapping

import numpy as np

from bert_jax.data.rng import stream
from bert_jax.pipelines.tokenised.documents import join_key


def mixed_shares(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns each language's share: ``{"en": 90, "is": 10}`` at 0.7 → 0.823 and 0.177."""
    weights = _weights(sizes, smoothing)
    total = sum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


def boosts(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns how often each language's text is used, 1 being the mean over all text.

    ``{"en": 90, "is": 10}`` at 0.7 → 0.915 and 1.769: its smoothed share by its share in the
    corpus. The size of all text stays the same; a smoothing of 1 gives exactly 1. Takes the
    arguments of :func:`mixed_shares`.
    """
    weights = _weights(sizes, smoothing)
    # In this order of operations, so that equal numbers are divided by each other at 1.
    level = sum(sizes.values()) / sum(weights.values())
    return {language: weights[language] / size * level for language, size in sizes.items()}


def draw_passes(keys: np.ndarray, *, mean: float, seed: int) -> list[list[int]]:
    """Returns the documents of every pass: three documents at 1.4 → ``[0, 1, 2]``, ``[1]``, say.

    Every document is in ``floor(mean)`` passes, and in one more with the remaining probability, a
    function of its key alone. The keys are ``[d, 2]`` uint64.
    """
    whole = math.floor(mean)
    passes = [list(range(len(keys))) for _ in range(whole)]
    if rest := mean - whole:
        chances = (stream(seed, "passes", join_key(key)).random() for key in keys)
        passes.append([number for number, chance in enumerate(chances) if chance < rest])
    return passes


def _weights(sizes: Mapping[str, int], smoothing: float) -> dict[str, float]:
    return {language: float(size) ** smoothing for language, size in sizes.items()}
