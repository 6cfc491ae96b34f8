"""Sparse vectors: the pieces of some queries and of their best passages, and which match."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bert_jax.report.rendering import View

QUERIES: Final = 15  # queries shown
PASSAGES: Final = 5  # passages shown of a query
_PIECES: Final = 12  # pieces shown of a text


class WeightedText(NamedTuple):
    """A text with its weights by piece."""

    text: str
    weights: Mapping[str, float]


class FoundPassage(NamedTuple):
    """A passage that a query found."""

    passage: WeightedText
    score: float
    grade: float | None = None  # grade of a relevant passage, or score of a pair


def pieces_view(found: Sequence[tuple[WeightedText, Sequence[FoundPassage]]]) -> View:
    """Returns queries and their passages with the largest weights.

    The match of a piece is the product of its weights. The similarity is the sum of all matches.
    """
    return {
        "template": "finetuning/pieces.html",
        "queries": [
            {
                "text": query.text,
                "active": len(query.weights),
                "pieces": _largest(query.weights),
                "found": [
                    {
                        "text": each.passage.text,
                        "score": each.score,
                        "grade": each.grade,
                        "active": len(each.passage.weights),
                        "pieces": _largest(each.passage.weights),
                        "matches": _largest(_products(query.weights, each.passage.weights)),
                    }
                    for each in passages
                ],
            }
            for query, passages in found
        ],
    }


def _products(query: Mapping[str, float], passage: Mapping[str, float]) -> dict[str, float]:
    return {piece: query[piece] * passage[piece] for piece in query.keys() & passage.keys()}


def _largest(weights: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(weights.items(), key=lambda each: (-each[1], each[0]))[:_PIECES]
