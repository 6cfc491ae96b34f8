"""Retrieval: ranks all passages for every query, and scores the ranks."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.inference.comparison import Comparison, comparison_of
from bert_jax.model.text_head import VectorHeadSection
from bert_jax.tasks.family import Record, content_hash
from bert_jax.tasks.search.tuples import (
    Shown,
    TextSample,
    TextsSplit,
    TextTuple,
    spread,
)
from bert_jax.text.tokenizer import Tokenizer

RECALLED: Final = (1, 10, 100)  # k of recall@k
CUTOFF: Final = 10  # k of nDCG@k; also number of passages in a record
FIGURES: Final = (f"ndcg@{CUTOFF}", "mrr", *(f"recall@{k}" for k in RECALLED))
_SCORES_AT_ONCE: Final = 1 << 24  # float32: 64 MiB


class Retrieval(NamedTuple):
    """Queries, passages, and which passages are relevant."""

    queries: Mapping[str, str]  # texts by id
    passages: Mapping[str, str]  # texts by id
    relevance: Mapping[str, Mapping[str, int]]  # grades by query and passage; relevant: 1 or more


def retrieval_of(rows: Sequence[TextTuple]) -> Retrieval:
    """Returns a retrieval among the texts of pairs or triplets; a text is its own id.

    Every positive of an anchor is relevant. All positives and negatives are passages.
    """
    relevance: dict[str, dict[str, int]] = {}
    for row in rows:
        relevance.setdefault(row.texts[0], {})[row.texts[1]] = 1
    passages = {text: text for row in rows for text in row.texts[1:]}
    return Retrieval({query: query for query in relevance}, passages, relevance)


class RetrievalSplit(TextsSplit):
    """A retrieval as rows of one text: all queries, then all passages."""

    def __init__(
        self,
        data: Retrieval,
        *,
        head: VectorHeadSection,
        tokenizer: Tokenizer,
        max_length: int,
    ) -> None:
        """Encodes all texts."""
        self.data = data
        queries = [head.query_prefix + text for text in data.queries.values()]
        passages = [head.passage_prefix + text for text in data.passages.values()]
        texts = [[text] for text in (*queries, *passages)]
        super().__init__(
            texts, tokenizer=tokenizer, max_length=max_length, comparison=comparison_of(head)
        )
        self.examples = len(queries)
        few = len(passages) if len(passages) <= CUTOFF else 0
        self.findings = {**self.findings, f"passages, so {FIGURES[0]} of any order is high": few}
        self.fingerprint = content_hash([data])

    @property
    def undecided(self) -> str | None:
        """Passages that fit all queries alike, see `TextsSplit`."""
        data = self.data
        for query, grades in data.relevance.items():
            judged = [grade for passage, grade in grades.items() if passage in data.passages]
            searched = len(data.passages) - (query in data.passages)
            if len(judged) < searched or len(set(judged)) > 1:
                return None
        return f"no passage that does not fit ({len(data.passages):,} in all)"

    def sample(self, limit: int) -> TextSample:
        """Returns rows, see `TextsSplit`: queries, one relevant passage of each, and others."""
        data, queries, passages = self.data, list(self.data.queries), list(self.data.passages)
        asked = spread(len(queries), limit // 3)
        place = {each: at for at, each in enumerate(passages)}
        best = {  # relevant passage of each query that has one
            at: max(known, key=data.relevance[queries[at]].__getitem__)
            for at in asked
            if (
                known := [
                    p
                    for p, grade in data.relevance[queries[at]].items()
                    if grade > 0 and p in place
                ]
            )
        }
        found = list(
            dict.fromkeys(
                [*map(place.__getitem__, best.values()), *spread(len(passages), limit // 3)]
            )
        )
        at_found = {passages[at]: len(asked) + index for index, at in enumerate(found)}
        texts = [data.queries[queries[at]] for at in asked]
        texts += [data.passages[passages[at]] for at in found]
        pairs = [(index, at_found[best[at]], None) for index, at in enumerate(asked) if at in best]
        rows = [*asked, *(len(queries) + at for at in found)]
        return TextSample(rows, texts, pairs, len(queries) + len(passages))

    def shown(self, records: Sequence[Record], *, queries: int, passages: int) -> list[Shown]:
        """Returns at most some queries with their best passages, from the records of all rows."""
        texts, found = self.data.passages, list[Shown]()
        place = {each: at for at, each in enumerate(texts, start=len(self.data.queries))}
        for at in spread(len(records), queries):
            best = records[at]["prediction"][:passages]
            fits = [records[at]["label"].get(each, 0) > 0 for each in best]
            rows = [at, *map(place.__getitem__, best)]
            found.append(Shown(rows, [records[at]["text"], *map(texts.__getitem__, best)], fits))
        return found

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first one, because all rows are ranked together."""
        return row == 0

    def is_query(self, index: int, text: int) -> bool:
        """Returns whether a row is before the passages."""
        del text
        return index < len(self.data.queries)

    def reduce(self, index: int, logits: np.ndarray) -> Any:
        """Returns what `Comparison.kept` keeps of the output of a row."""
        return super().reduce(index, logits)[0]

    def records(self, reduced: Sequence[Any], *, first: int = 0) -> list[Record]:
        """Returns a record per query: best passages, and ranks of the relevant passages."""
        assert first == 0
        count = len(self.data.queries)
        return rank(self.data, reduced[:count], reduced[count:], comparison=self.comparison)


def rank(
    data: Retrieval,
    queries: Sequence[Any],
    passages: Sequence[Any],
    *,
    comparison: Comparison[Any],
) -> list[Record]:
    """Ranks all passages for each query by their similarity. The texts are as in `data`.

    The label of a record is the grades by passage. A passage with the query's id is left out, as in
    BEIR. Of passages with equal similarities, the larger id comes first, as in trec_eval.
    """
    ids = list(data.passages)
    number = {each: at for at, each in enumerate(ids)}
    later = np.argsort(np.argsort(ids))  # places of the ids in alphabetical order
    records: list[Record] = []
    block = max(1, _SCORES_AT_ONCE // len(ids))
    names, searched = list(data.queries), comparison.collect(passages)
    for start in range(0, len(names), block):
        asked = comparison.collect(queries[start : start + block])
        products = comparison.scores(asked, searched)
        for name, scores in zip(names[start : start + block], products, strict=True):
            if name in number:
                scores[number[name]] = -np.inf
            grades = data.relevance[name]
            best = _best(scores, later)
            records.append(
                {
                    "id": name,
                    "text": data.queries[name],
                    "label": dict(grades),
                    "prediction": [ids[at] for at in best],
                    "scores": [float(scores[at]) for at in best],
                    "ranks": {
                        each: _rank(scores, later, number[each])
                        for each, grade in grades.items()
                        if grade > 0 and each != name and each in number
                    },
                }
            )
    return records


def _best(scores: np.ndarray, later: np.ndarray) -> list[int]:
    count = min(CUTOFF, len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = np.flatnonzero((scores >= least) & (scores > -np.inf))
    ordered = chosen[np.lexsort((-later[chosen], -scores[chosen]))]
    return ordered[:count].tolist()


def _rank(scores: np.ndarray, later: np.ndarray, at: int) -> int:
    before = (scores > scores[at]) | ((scores == scores[at]) & (later > later[at]))
    return 1 + int(before.sum())


def one_order(records: Sequence[Record]) -> list[Record]:
    """Returns rankings in the same order, in which the most often relevant passage is first."""
    relevant = Counter(passage for record in records for passage in record["ranks"])
    order = sorted(relevant, key=lambda passage: (-relevant[passage], passage))
    place = {passage: at for at, passage in enumerate(order, start=1)}
    return [
        record | {"prediction": order, "ranks": {each: place[each] for each in record["ranks"]}}
        for record in records
    ]


def retrieval_figures(
    records: Sequence[Record], names: Sequence[str] = FIGURES
) -> dict[str, float]:
    """Returns the means over queries of some figures.

    "mrr" is 1 / rank of the first relevant passage, without a cutoff. "mrr@10" is 0 if this rank is
    above 10. "recall@k" is the share of the relevant passages among the first k. "map" is the mean,
    over all relevant passages, of the precision at their ranks. Equal to trec_eval's `ndcg_cut_10`,
    `recip_rank`, `recall_k` and `map` for complete rankings.
    """
    of_queries = [_figures_of(record) for record in records]
    return {name: sum(each[name] for each in of_queries) / len(records) for name in names}


def _figures_of(record: Record) -> dict[str, float]:
    grades = sorted((grade for grade in record["label"].values() if grade > 0), reverse=True)
    by_rank = sorted((place, record["label"][each]) for each, place in record["ranks"].items())
    gained = sum(grade / math.log2(place + 1) for place, grade in by_rank if place <= CUTOFF)
    most = sum(grade / math.log2(at + 1) for at, grade in enumerate(grades[:CUTOFF], start=1))
    ranks, relevant = [place for place, _ in by_rank], max(len(grades), 1)
    first = 1 / ranks[0] if ranks else 0.0
    return {
        FIGURES[0]: gained / most if most else 0.0,
        "mrr": first,
        f"mrr@{CUTOFF}": first if first >= 1 / CUTOFF else 0.0,
        "map": sum(at / place for at, place in enumerate(ranks, start=1)) / relevant,
        **{f"recall@{k}": sum(place <= k for place in ranks) / relevant for k in RECALLED},
    }
