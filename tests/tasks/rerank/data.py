"""Made-up queries with candidates that share words with them."""

from pathlib import Path
from typing import Any

from tests.tasks.runs import tiny_run
from tests.tasks.search.data import pairs, write_beir, write_jsonl


def lists(rows: int, seed: int) -> list[dict[str, Any]]:
    """Returns queries with two or three candidates; the first of every fourth list is wrong."""
    made = []
    for number, row in enumerate(pairs(rows, seed)):
        documents = [row["answer"], row["wrong"], row["similar"]][: 2 + number % 2]
        labels = [1, 0, 0][: len(documents)]
        if number % 4 == 0:
            documents, labels = documents[::-1], labels[::-1]
        made.append({"query": row["question"], "documents": documents, "labels": labels})
    return made


def candidates_of(rows: list[dict[str, Any]]) -> list[list[int]]:
    """Returns the numbers of 5 candidate passages of each query. The third one answers it."""
    return [[(at + other) % len(rows) for other in (3, 1, 0, 2, 4)] for at in range(len(rows))]


def write_candidates(directory: Path, rows: list[dict[str, Any]], role: str = "dev") -> Path:
    """Writes a directory in the layout of BEIR with the candidates of `candidates_of`."""
    write_beir(directory, rows, role)
    lines = ["query-id\tcorpus-id\tscore"]
    for at, others in enumerate(candidates_of(rows)):
        lines += [f"q{at}\tp{other}\t{5 - rank}" for rank, other in enumerate(others)]
    (directory / "candidates").mkdir(exist_ok=True)
    (directory / "candidates" / f"{role}.tsv").write_text("\n".join(lines) + "\n")
    return directory


def rerank_config(directory: Path, *, rows: int = 160, **changes: Any) -> dict[str, Any]:
    """Returns a configuration that trains on `rows` lists; `changes` override the task's keys."""
    task = {
        "kind": "rerank",
        "train": str(write_jsonl(directory / "train.jsonl", lists(rows, 1))),
        "dev": str(write_jsonl(directory / "dev.jsonl", lists(40, 2))),
        "query": "query",
        "document": "documents",
        "label": "labels",
        "loss": {"kind": "list_net"},
    }
    finetune = {
        "init_from": str(tiny_run(directory)),
        "task": task | changes,
        "max_length": 16,
        "batch_size": 32,
        "epochs": 3,
        "optimizer": {"learning_rate": 2e-3},
    }
    return {"seed": 0, "run_dir": str(directory / "tuned"), "finetune": finetune}
