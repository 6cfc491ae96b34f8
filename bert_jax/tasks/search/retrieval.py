"""Retrieval: ranks all passages for every query, and scores the ranks."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.data.tables import SUFFIXES, RowError, TableRow, read_table
from bert_jax.errors import UserError
from bert_jax.files.download import local_copy
from bert_jax.files.hub import is_dataset_file
from bert_jax.files.remote import is_remote
from bert_jax.inference.comparison import Comparison, comparison_of
from bert_jax.model.text_head import VectorHeadSection
from bert_jax.tasks.family import Record, content_hash, no_rows
from bert_jax.tasks.labels import number_of
from bert_jax.tasks.search.tuples import (
    TextSample,
    TextsSplit,
    TextTuple,
    spread,
    text_of,
)
from bert_jax.tasks.table import row_id
from bert_jax.text.tokenizer import Tokenizer

QUERIES: Final = "queries.jsonl"
PASSAGES: Final = "corpus.jsonl"
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


def is_directory(path: str) -> bool:
    """Returns whether a path is a directory. A remote directory is a path without a suffix."""
    if is_remote(path):
        return Path(path).suffix not in SUFFIXES
    return not is_dataset_file(path) and Path(path).is_dir()


def files_of(directory: str, role: str) -> list[str]:
    """Returns the files of a directory in the layout of BEIR: queries, passages, relevance."""
    return [f"{directory}/{name}" for name in (QUERIES, PASSAGES, f"qrels/{role}.tsv")]


def read_retrieval(directory: str, role: str) -> tuple[Retrieval, list[str]]:
    """Reads a directory in the layout of BEIR (arXiv 2104.08663).

    ``queries.jsonl`` has `_id` and `text`, ``corpus.jsonl`` also `title`. ``qrels/<role>.tsv`` has
    the columns `query-id`, `corpus-id` and `score`. Queries that it does not name are left out.

    Some datasets of BEIR judge passages that are not in the corpus. As in pytrec_eval, they are
    passages that no search finds, and a query without a relevant passage scores 0.

    Returns the data, and notes on judgements of unknown ids and on queries without a relevant
    passage. Raises UserError if a file is missing or malformed, a query is empty, or no query has a
    relevant passage in the corpus.
    """
    asked, searched, judged = map(local_copy, files_of(directory, role))
    queries = {id_of(row, "_id"): text_of(row, "text") for row in rows_of(asked, "_id", "text")}
    passages = {}
    for row in rows_of(searched, "_id", "text"):
        title = row.text("title") if row.values.get("title") else ""
        passages[id_of(row, "_id")] = f"{title} {row.text('text')}".strip()
    relevance: dict[str, dict[str, int]] = {}
    unknown: dict[str, list[str]] = {QUERIES: [], PASSAGES: []}  # judged ids that a file lacks
    for row in rows_of(judged, "query-id", "corpus-id", "score"):
        query, passage, grade = id_of(row, "query-id"), id_of(row, "corpus-id"), _grade(row)
        if query not in queries:
            unknown[QUERIES].append(query)
            continue
        if passage not in passages:
            unknown[PASSAGES].append(passage)
        relevance.setdefault(query, {})[passage] = grade
    found = [
        query
        for query, grades in relevance.items()
        if any(grade > 0 and passage in passages for passage, grade in grades.items())
    ]
    if not found:
        raise UserError(
            "embedding.no_relevant_passage",
            f"found no query of {QUERIES} with a relevant passage (score 1 or higher) in "
            f"{PASSAGES}",
            place=judged,
        )
    notes = [
        f"{judged}: {len(ids):,} judgements of ids that {file} lacks {effect}, first {ids[0]}"
        for (file, ids), effect in zip(
            unknown.items(), ("are skipped", "count as passages not found"), strict=True
        )
        if ids
    ]
    if none := len(relevance) - len(found):
        notes.append(
            f"{judged}: {none:,} of {len(relevance):,} queries have no relevant passage in "
            f"{PASSAGES} and score 0"
        )
    return Retrieval({query: queries[query] for query in relevance}, passages, relevance), notes


def rows_of(path: Path, *columns: str) -> list[TableRow]:
    """Returns the rows of a file. Raises UserError if it is empty or lacks one of the columns."""
    rows = list(read_table(path))
    if not rows:
        raise no_rows(path)
    for row in rows:
        row.require((name, name) for name in columns)
    return rows


def id_of(row: TableRow, column: str) -> str:
    """Returns the id in a column. Raises RowError as `row_id`."""
    return str(row_id(row, column))


def _grade(row: TableRow) -> int:
    found = number_of(row.values["score"])
    if found is None or not found.is_integer():
        raise RowError(
            "embedding.grade",
            f"found {row.values['score']!r}, allowed: a whole number",
            place=f'{row.place}: column "score"',
        )
    return int(found)


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
        queries = [head.query_prefix + text for text in data.queries.values()]
        passages = [head.passage_prefix + text for text in data.passages.values()]
        texts = [[text] for text in (*queries, *passages)]
        super().__init__(
            texts, tokenizer=tokenizer, max_length=max_length, comparison=comparison_of(head)
        )
        self.examples, self._data = len(queries), data
        few = len(passages) if len(passages) <= CUTOFF else 0
        self.findings = {**self.findings, f"passages, so {FIGURES[0]} of any order is high": few}
        self.fingerprint = content_hash([data])

    @property
    def undecided(self) -> str | None:
        """Passages that fit all queries alike, see `TextsSplit`."""
        data = self._data
        for query, grades in data.relevance.items():
            judged = [grade for passage, grade in grades.items() if passage in data.passages]
            searched = len(data.passages) - (query in data.passages)
            if len(judged) < searched or len(set(judged)) > 1:
                return None
        return f"no passage that does not fit ({len(data.passages):,} in all)"

    def sample(self, limit: int) -> TextSample:
        """Returns rows, see `TextsSplit`: queries, one relevant passage of each, and others."""
        data, queries, passages = self._data, list(self._data.queries), list(self._data.passages)
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

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first one, because all rows are ranked together."""
        return row == 0

    def is_query(self, index: int, text: int) -> bool:
        """Returns whether a row is before the passages."""
        del text
        return index < len(self._data.queries)

    def reduce(self, index: int, logits: np.ndarray) -> Any:
        """Returns what `Comparison.kept` keeps of the output of a row."""
        return super().reduce(index, logits)[0]

    def records(self, reduced: Sequence[Any], *, first: int = 0) -> list[Record]:
        """Returns a record per query: best passages, and ranks of the relevant passages."""
        assert first == 0
        count = len(self._data.queries)
        return rank(self._data, reduced[:count], reduced[count:], comparison=self._comparison)


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
