"""Rankings of some queries: before and after reranking, and the matches of late interaction."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from bert_jax.report.rendering import Record, View

QUERIES: Final = 15  # queries shown
DOCUMENTS: Final = 10  # documents shown of a query


def rankings_view(records: Sequence[Record], documents: Sequence[Mapping[str, str]]) -> View:
    """Returns the best documents of queries at equal distances, with their places before.

    `documents` are the candidates of each record in the given order, with their texts by id.
    """
    chosen = range(0, len(records), -(-len(records) // QUERIES))
    return {
        "template": "finetuning/rankings.html",
        "queries": [_query(records[at], documents[at]) for at in chosen],
    }


def _query(record: Record, documents: Mapping[str, str]) -> View:
    before = {name: place for place, name in enumerate(documents, start=1)}
    best = zip(record["prediction"][:DOCUMENTS], record["scores"], strict=False)
    return {
        "text": record["text"],
        "found": [
            {
                "text": documents[name],
                "score": score,
                "before": before[name],
                "grade": (record["label"] or {}).get(name, 0),
            }
            for name, score in best
        ],
    }


class TokenText(NamedTuple):
    """The pieces of a text and their vectors, [pieces, width]."""

    pieces: Sequence[str]
    vectors: np.ndarray


class RankedTexts(Protocol):
    """A query, and passages for it."""

    @property
    def texts(self) -> Sequence[str]:
        """The query, then the passages."""
        ...

    @property
    def fits(self) -> Sequence[bool]:
        """Whether each passage fits."""
        ...


def matches_view(rankings: Sequence[tuple[RankedTexts, Sequence[TokenText]]]) -> View:
    """Returns passages of queries, and the best match of each piece of a query in each passage.

    The texts with their vectors are in the order of `RankedTexts.texts`.
    """
    queries = []
    for ranked, (query, *passages) in rankings:
        cosines = [query.vectors @ passage.vectors.T for passage in passages]
        best = [each.argmax(axis=1) for each in cosines]
        scores = [float(each.max(axis=1).sum()) for each in cosines]
        matches = [
            [piece]
            + [
                f"{passage.pieces[places[row]]} {found[row, places[row]]:.2f}"
                for passage, found, places in zip(passages, cosines, best, strict=True)
            ]
            for row, piece in enumerate(query.pieces)
        ]
        queries.append(
            {
                "text": ranked.texts[0],
                "passages": list(zip(ranked.texts[1:], scores, ranked.fits, strict=True)),
                "columns": ["query", *(f"passage {at}" for at in range(1, len(passages) + 1))],
                "matches": matches,
            }
        )
    return {"template": "finetuning/matches.html", "queries": queries}
