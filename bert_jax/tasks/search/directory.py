"""Reads retrievals from directories in the layouts of BEIR and NanoBEIR."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.data.tables import SUFFIXES, RowError, TableRow, read_table
from bert_jax.errors import UserError, commas
from bert_jax.files.download import local_copy
from bert_jax.files.hub import fetch_file, is_dataset_file
from bert_jax.files.remote import is_remote
from bert_jax.places import DATASETS
from bert_jax.tasks.family import no_rows
from bert_jax.tasks.labels import number_of
from bert_jax.tasks.search.retrieval import Retrieval
from bert_jax.tasks.search.tuples import text_of
from bert_jax.tasks.table import row_id

QUERIES: Final = "queries"
PASSAGES: Final = "corpus"
RELEVANCE: Final = "qrels"
CANDIDATES: Final = "candidates"
PARTS: Final = (QUERIES, PASSAGES, RELEVANCE)
DIRECTORY: Final = "a directory with queries.jsonl, corpus.jsonl and qrels"  # in messages
_BM25: Final = "bm25"  # folder of the candidates in NanoBEIR


def is_directory(path: str) -> bool:
    """Returns whether a path is a directory of tables, or a set in such a directory.

    A path in a bucket or in a dataset on a hub is a directory if it has no suffix of a table.
    """
    if is_dataset_file(path):
        owner_name_file = path.removeprefix(DATASETS).split("/", 2)
        return len(owner_name_file) == 3 and Path(path).suffix not in SUFFIXES
    if is_remote(path):
        return Path(path).suffix not in SUFFIXES
    found = Path(path)
    return found.is_dir() or (not found.exists() and Path(found.parent, PASSAGES).is_dir())


def files_of(directory: str, role: str, parts: Sequence[str] = PARTS) -> dict[str, list[str]]:
    """Returns the files of each part of a retrieval.

    BEIR: ``D/queries.jsonl``, ``D/corpus.jsonl``, ``D/qrels/<role>.tsv`` and
    ``D/candidates/<role>.tsv``. The set S in the layout of NanoBEIR, whose directory is ``D/S``:
    ``D/queries/S-*.parquet``, and the same in ``corpus``, ``qrels`` and ``bm25``. The role "input"
    is like "test".

    Downloads the files of a dataset on a hub. Raises UserError if a set lacks a part.
    """
    on_hub = is_dataset_file(directory)
    found = str(fetch_file(directory, role=role).path) if on_hub else directory
    of_set = {part: _tables(found, part) for part in parts}
    is_local_set = not is_remote(found) and not Path(found).is_dir()
    if not is_local_set and not any(of_set.values()):
        role = "test" if role == "input" else role
        names = {QUERIES: f"{QUERIES}.jsonl", PASSAGES: f"{PASSAGES}.jsonl"}
        return {part: [f"{found}/{names.get(part, f'{part}/{role}.tsv')}"] for part in parts}
    for part, tables in of_set.items():
        if not tables:
            folder = _folder(found, part)
            sets = sorted({each.name.partition("-")[0] for each in folder.glob("*.parquet")})
            raise UserError(
                "search.no_set",
                f"found {commas(sets)} in {folder.name}, allowed: {Path(found).name}-*.parquet",
                place=directory,
            )
    return of_set


def _folder(directory: str, part: str) -> epath.Path:
    return epath.Path(directory).parent / (_BM25 if part == CANDIDATES else part)


def _tables(directory: str, part: str) -> list[str]:
    name = Path(directory).name
    return sorted(str(each) for each in _folder(directory, part).glob(f"{name}-*.parquet"))


def read_retrieval(directory: str, role: str) -> tuple[Retrieval, list[str]]:
    """Reads a directory in the layout of BEIR (arXiv 2104.08663) or NanoBEIR, see `files_of`.

    The queries have `_id` and `text`, the corpus also `title`. The relevance has `query-id`,
    `corpus-id` and `score`, which is 1 if a set of NanoBEIR has no such column. Queries that it
    does not name are left out.

    Some datasets of BEIR judge passages that are not in the corpus. As in pytrec_eval, they are
    passages that no search finds, and a query without a relevant passage scores 0.

    Returns the data, and notes on judgements of unknown ids and on queries without a relevant
    passage. Raises UserError if a file is missing or malformed, a query is empty, or no query has a
    relevant passage in the corpus.
    """
    asked, searched, judged = files_of(directory, role).values()
    queries = {id_of(row, "_id"): text_of(row, "text") for row in rows_of(asked, "_id", "text")}
    passages = {}
    for row in rows_of(searched, "_id", "text"):
        title = row.text("title") if row.values.get("title") else ""
        passages[id_of(row, "_id")] = f"{title} {row.text('text')}".strip()
    relevance: dict[str, dict[str, int]] = {}
    unknown: dict[str, list[str]] = {QUERIES: [], PASSAGES: []}  # judged ids that a part lacks
    graded = ("score",) if judged[0].endswith(".tsv") else ()
    for query, passage, row in pairs_of(judged, *graded):
        if query not in queries:
            unknown[QUERIES].append(query)
            continue
        if passage not in passages:
            unknown[PASSAGES].append(passage)
        relevance.setdefault(query, {})[passage] = _grade(row)
    found = [
        query
        for query, grades in relevance.items()
        if any(grade > 0 and passage in passages for passage, grade in grades.items())
    ]
    if not found:
        raise UserError(
            "embedding.no_relevant_passage", "no relevant passage is in the corpus", place=judged[0]
        )
    notes = [
        f"{judged[0]}: {len(ids):,} judgements of ids that are not in {part} {effect}, first "
        f"{ids[0]}"
        for (part, ids), effect in zip(
            unknown.items(), ("are skipped", "count as passages not found"), strict=True
        )
        if ids
    ]
    if none := len(relevance) - len(found):
        notes.append(
            f"{judged[0]}: {none:,} of {len(relevance):,} queries have no relevant passage in the "
            "corpus and score 0"
        )
    return Retrieval({query: queries[query] for query in relevance}, passages, relevance), notes


def rows_of(paths: Sequence[str], *columns: str) -> Iterator[TableRow]:
    """Yields the rows of files. Raises UserError if one is empty or lacks one of the columns."""
    for path in map(local_copy, paths):
        rows = list(read_table(path))
        if not rows:
            raise no_rows(path)
        for row in rows:
            row.require((name, name) for name in columns)
            yield row


def pairs_of(paths: Sequence[str], *columns: str) -> Iterator[tuple[str, str, TableRow]]:
    """Yields the query and the passage of each row.

    `corpus-id` or `corpus-ids` may be a list. Raises errors as `rows_of` and `row_id`.
    """
    for row in rows_of(paths, "query-id", *columns):
        column = "corpus-ids" if "corpus-ids" in row.values else "corpus-id"
        row.require([(column, column)])
        ids = row.values[column]
        for each in ids if isinstance(ids, list) else [ids]:
            yield id_of(row, "query-id"), id_of(row._replace(values={column: each}), column), row


def id_of(row: TableRow, column: str) -> str:
    """Returns the id in a column. Raises RowError as `row_id`."""
    return str(row_id(row, column))


def _grade(row: TableRow) -> int:
    found = number_of(row.values.get("score", 1))
    if found is None or not found.is_integer():
        raise RowError.wrong(
            "embedding.grade", f"{row.values['score']!r}", "a whole number", place=row.at("score")
        )
    return int(found)
