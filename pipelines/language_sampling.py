"""Exponentially smoothed sampling of languages.

Source: multilingual BERT's README (google-research/bert, ``multilingual.md``): the share of a
language in the corpus is taken to the power of S = 0.7 and renormalised, for the vocabulary and for
the examples.
"""

from collections.abc import Mapping


def mixed_shares(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns each language's share: ``{"en": 90, "is": 10}`` at 0.7 → 0.823 and 0.177."""
    weights = _weights(sizes, smoothing)
    total = sum(weights.values())
    return {language: weight / total for language, weight in weights.items()}


def boosts(sizes: Mapping[str, int], *, smoothing: float) -> dict[str, float]:
    """Returns each language's smoothed share divided by its share in the corpus.

    ``{"en": 90, "is": 10}`` at 0.7 → 0.915 and 1.769: how often its text is used, 1 being the mean
    over all text. A smoothing of 1 gives exactly 1.
    """
    weights = _weights(sizes, smoothing)
    # In this order of operations, so that at 1 equal numbers are divided by each other.
    level = sum(sizes.values()) / sum(weights.values())
    return {language: weights[language] / size * level for language, size in sizes.items()}


def _weights(sizes: Mapping[str, int], smoothing: float) -> dict[str, float]:
    return {language: float(size) ** smoothing for language, size in sizes.items()}
