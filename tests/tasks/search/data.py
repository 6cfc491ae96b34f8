"""Pairs of made-up texts that share words, and files in the layout of BEIR."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.tasks.runs import BAD, FILLERS, GOOD, tiny_run


def pairs(rows: int, seed: int) -> list[dict[str, Any]]:
    """Returns questions of four words, and answers with two of them.

    ``{"id": "r0", "question": "word1 …", "answer": "…", "wrong": "…", "rating": 4}``. `wrong` has
    one of the words. A rating of 1 has no word of the question in its answer.
    """
    rng, made = np.random.default_rng(seed), []
    for number in range(rows):
        words = rng.permutation(FILLERS)
        others = rng.choice([*GOOD, *BAD], 3)
        rating = int(rng.choice([1, 4]))
        shared = words[:2] if rating == 4 else words[8:10]
        made.append(
            {
                "id": f"r{number}",
                "question": " ".join(words[:4]),
                "answer": " ".join([*words[1:3], *others]),
                "wrong": " ".join([words[3], *others[1:], *words[4:6]]),
                "similar": " ".join([*shared, *words[12:15]]),
                "rating": rating,
            }
        )
    return made


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_beir(directory: Path, rows: list[dict[str, Any]], role: str = "dev") -> Path:
    """Writes questions as queries, and answers as titles and texts of passages."""
    queries = [{"_id": f"q{n}", "text": row["question"]} for n, row in enumerate(rows)]
    answers = [row["answer"].split(" ", 1) for row in rows]
    passages = [{"_id": f"p{n}", "title": t, "text": rest} for n, (t, rest) in enumerate(answers)]
    write_jsonl(directory / "queries.jsonl", queries)
    write_jsonl(directory / "corpus.jsonl", passages)
    write_qrels(directory, [(f"q{n}", f"p{n}", 1) for n in range(len(rows))], role=role)
    return directory


def write_nano(
    directory: Path, rows: list[dict[str, Any]], candidates: Sequence[Sequence[int]]
) -> Path:
    """Writes the content of `write_beir` as a set of NanoBEIR. Returns the path of the set.

    `candidates` has the numbers of the candidate passages of each query.
    """
    answers = enumerate(row["answer"] for row in rows)
    lists = ([f"p{each}" for each in numbers] for numbers in candidates)
    tables: dict[str, list[dict[str, Any]]] = {
        "queries": [{"_id": f"q{n}", "text": row["question"]} for n, row in enumerate(rows)],
        "corpus": [{"_id": f"p{n}", "text": text} for n, text in answers],
        "qrels": [{"query-id": f"q{n}", "corpus-id": f"p{n}"} for n in range(len(rows))],
        "bm25": [{"query-id": f"q{n}", "corpus-ids": ids} for n, ids in enumerate(lists)],
    }
    for name, table in tables.items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        for made in ("NanoMade", "NanoOther"):
            path = directory / name / f"{made}-00000-of-00001.parquet"
            pq.write_table(pa.Table.from_pylist(table), path)
    return directory / "NanoMade"


def write_qrels(
    directory: Path, rows: Iterable[tuple[str, str, object]], *, role: str = "dev"
) -> Path:
    path = directory / "qrels" / f"{role}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def embedding_config(directory: Path, *, rows: int = 160, **changes: Any) -> dict[str, Any]:
    """Returns a configuration that trains on `rows` pairs; `changes` override the task's keys."""
    task = {
        "kind": "embedding",
        "train": str(write_jsonl(directory / "train.jsonl", pairs(rows, 1))),
        "dev": str(write_jsonl(directory / "dev.jsonl", pairs(40, 2))),
        "anchor": "question",
        "positive": "answer",
    }
    finetune = {
        "init_from": str(tiny_run(directory)),
        "task": task | changes,
        "max_length": 8,  # one compiled length
        "batch_size": 32,
        "epochs": 3,
        "optimizer": {"learning_rate": 2e-3},
    }
    return {"seed": 0, "run_dir": str(directory / "tuned"), "finetune": finetune}
