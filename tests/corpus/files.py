"""A corpus of short texts in files, and models to score it with."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import PoolingSection, TokenVectorsSection
from tests.tasks.runs import BAD, FILLERS, GOOD, tiny_run

CLASSES = HeadsSection(
    mlm=False,
    next_sentence=False,
    task="sequence_classification",
    problem="single_label",
    labels=("bad", "fair", "good"),
)
REGRESSION = CLASSES.model_copy(update={"problem": "regression", "labels": ("score",)})
SEVERAL = CLASSES.model_copy(update={"problem": "multi_label"})
TAGS = HeadsSection(
    pooler=False,
    mlm=False,
    next_sentence=False,
    task="token_classification",
    labels=("O", "B-X", "I-X"),
)
VECTORS = HeadsSection(
    mlm=False, next_sentence=False, embedding=PoolingSection(pool="mean", normalize=True)
)
TOKENS = HeadsSection(
    mlm=False,
    next_sentence=False,
    late_interaction=TokenVectorsSection(projection=8, skipped=(7, 20)),
)


def texts(count: int, *, seed: int) -> list[str]:
    """Returns texts of 1 to 70 words; the model has 64 positions."""
    rng = np.random.default_rng(seed)
    words = [*GOOD, *BAD, *FILLERS, "unknown", "Élan,"]
    return [" ".join(rng.choice(words, rng.integers(1, 71))) for _ in range(count)]


def write_parquet(path: Path, count: int, *, seed: int, rows_per_group: int = 50) -> Path:
    """Writes rows with the columns `id`, `text`, `page`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "id": [f"{path.stem}-{at}" for at in range(count)],
            "text": texts(count, seed=seed),
            "page": list(range(count)),
        }
    )
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def write_corpus(directory: Path, *, parts: int = 6, rows: int = 60) -> Path:
    """Writes Parquet, JSON lines and packed JSON lines in two folders."""
    for at in range(parts):
        path = directory / "ab"[at % 2] / f"p{at}"
        if at % 3 == 0:
            write_parquet(path.with_suffix(".parquet"), rows, seed=at)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(
            json.dumps({"id": f"p{at}-{row}", "text": text, "page": row}) + "\n"
            for row, text in enumerate(texts(rows, seed=at))
        )
        if at % 3 == 1:
            path.with_suffix(".jsonl").write_text(lines)
        else:
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return directory


def config(directory: Path, corpus: Path, *, heads: HeadsSection = CLASSES, **score: Any) -> Path:
    """Writes a configuration and its model below a directory."""
    model = directory / "model" / "run"
    if not model.exists():
        tiny_run(directory / "model", heads=heads)
    section = {
        "model": str(model),
        "input": [str(corpus)],
        "output": str(directory / "out"),
        **score,
    }
    path = directory / "score.yaml"
    path.write_text(yaml.safe_dump({"score": section}))
    return path


def rows_of(output: Path) -> dict[str, dict[str, Any]]:
    """Returns all rows of an output directory by id."""
    found: list[dict[str, Any]] = []
    for path in sorted(output.rglob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    for path in sorted(output.rglob("*.jsonl")):
        found += map(json.loads, path.read_text().splitlines())
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def results(
    output: Path, *, without: Sequence[str] = ("_parts", "_report.html")
) -> dict[str, bytes]:
    """Returns the files of an output directory that must be equal on every engine."""
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in sorted(output.rglob("*"))
        if path.is_file() and not {*path.relative_to(output).parts} & {*without}
    }
