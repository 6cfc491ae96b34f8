"""Reranking: the candidates of some queries, before and after."""

from collections.abc import Mapping, Sequence
from typing import Final

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
