"""Every task family tells a model that learnt nothing from one that learnt something."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bert_jax.model.text_head import PoolingSection
from bert_jax.tasks.family import DataRequest, Family, Record
from bert_jax.tasks.scores import baseline_of
from bert_jax.tasks.section import TaskSection
from bert_jax.tasks.squad.family import SquadSplit
from bert_jax.validation import validate
from tests.tasks.rerank.data import write_candidates
from tests.tasks.search.data import write_beir, write_jsonl
from tests.tasks.sequences import make_tokenizer, write_lines
from tests.tasks.squad_data import question, squad, write

ROWS = 12
WORDS = [f"w{number}" for number in range(60)]


def glue(directory: Path) -> dict[str, Any]:
    lines = ["sentence\tlabel", *(f"{WORDS[n]}\t{n % 2}" for n in range(ROWS))]
    write_lines(directory / "train.tsv", lines)
    write_lines(directory / "dev.tsv", lines)
    return {"name": "sst2", "data": str(directory)}


def table(directory: Path, label: Callable[[int], Any]) -> dict[str, Any]:
    rows = [json.dumps({"text": WORDS[n], "label": label(n)}) for n in range(ROWS)]
    path = str(write_lines(directory / "rows.jsonl", rows))
    return {"train": path, "dev": path, "text": "text", "label": "label"}


def tokens(directory: Path, labels: tuple[str, ...]) -> dict[str, Any]:
    blocks = (f"{WORDS[n]} {labels[n % 2]}\n{WORDS[n + 1]} {labels[-1]}\n\n" for n in range(ROWS))
    path = directory / "rows.txt"
    path.write_text("".join(blocks))
    return {"train": str(path), "dev": str(path)}


def choice(directory: Path) -> dict[str, Any]:
    rows = [f"{WORDS[n]},{WORDS[n + 1]},{WORDS[n + 2]},{n % 2}" for n in range(ROWS)]
    path = str(write_lines(directory / "rows.csv", ["text,a,b,label", *rows]))
    return {"train": path, "dev": path, "text": "text", "choices": ["a", "b"], "label": "label"}


def questions(directory: Path, *, version: str) -> dict[str, Any]:
    paragraphs = []
    for n in range(ROWS):
        context = " ".join(WORDS[n : n + 8])
        found = () if version == "2.0" and n % 2 else ((WORDS[n + 3], context.index(WORDS[n + 3])),)
        impossible = None if version == "1.1" else not found
        paragraphs.append((context, [question(f"q{n}", "w", *found, impossible=impossible)]))
    path = write(directory / "rows.json", squad(*paragraphs, version=version))
    return {"train": path, "dev": path, "max_query_length": 2}


def texts(directory: Path, **settings: Any) -> dict[str, Any]:
    rows = [f"{WORDS[n]},{WORDS[n + 20]},{n % 5}" for n in range(ROWS)]
    path = str(write_lines(directory / "rows.csv", ["a,b,s", *rows]))
    return {"train": path, "dev": path, "anchor": "a", "positive": "b"} | settings


def directory_of_beir(directory: Path) -> dict[str, Any]:
    rows = [{"question": WORDS[n], "answer": f"{WORDS[n]} x"} for n in range(ROWS)]
    return texts(directory) | {"dev": str(write_beir(directory / "beir", rows))}


def candidates(directory: Path, *, beir: bool = False) -> dict[str, Any]:
    """Returns the settings of lists of two documents, or of candidates in a directory."""
    rows = [
        {"q": WORDS[n], "d": [WORDS[n + 1], WORDS[n + 2]], "l": [n % 2, 1 - n % 2]}
        for n in range(ROWS)
    ]
    path = str(write_jsonl(directory / "rows.jsonl", rows))
    settings = {"train": path, "dev": path, "query": "q", "document": "d", "label": "l"}
    pairs = [{"question": WORDS[n], "answer": f"{WORDS[n]} x"} for n in range(ROWS)]
    return settings | ({"dev": str(write_candidates(directory, pairs))} if beir else {})


SCORED = {"score": "s", "score_range": [0, 5], "loss": {"kind": "cosent"}}
# At least one way to open each family.
FAMILIES: dict[str, dict[str, Callable[[Path], dict[str, Any]]]] = {
    "glue": {"sst2": glue},
    "table": {
        "names": lambda path: table(path, lambda n: "ab"[n % 2]),
        "lists": lambda path: table(path, lambda n: ["a", "b"][: n % 3]),
        "numbers": lambda path: table(path, lambda n: n + 0.5),
    },
    "token_classification": {
        "spans": lambda path: tokens(path, ("B-A", "O")),
        "words": lambda path: tokens(path, ("NN", "VB")),
    },
    "multiple_choice": {"columns": choice},
    "squad": {
        "1.1": lambda path: questions(path, version="1.1"),
        "2.0": lambda path: questions(path, version="2.0"),
    },
    "embedding": {
        "pairs": texts,
        "scores": lambda path: texts(path, **SCORED),
        "beir": directory_of_beir,
    },
    "sparse": {"pairs": texts},
    "late_interaction": {"pairs": texts},
    "rerank": {"lists": candidates, "beir": functools.partial(candidates, beir=True)},
}
KINDS = {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in get_args(TaskSection)}


def opened(directory: Path, kind: str, make: Callable[[Path], dict[str, Any]]) -> Family:
    directory.mkdir(exist_ok=True)
    section = validate(KINDS[kind], make(directory) | {"kind": kind}, source="", key="task")
    tokenizer = make_tokenizer(directory / "tokenizer")
    return section.open(DataRequest(tokenizer, 16, seed=0, text_head=PoolingSection()))


def predicted(family: Family, logits: Callable[[tuple[int, ...]], np.ndarray]) -> list[Record]:
    """Returns the records of dev, given a function of the shape of a row's logits."""
    split = family.splits["dev"]
    reduced = []
    for row in range(len(split.lengths)):
        ids = split.row(row).sequences
        count = max(len(family.heads.labels), 1)
        shapes = {
            "token_classification": (len(ids[0]), count),
            "question_answering": (len(ids[0]), 2),
            "multiple_choice": (len(ids),),
            "sequence_classification": (count,),
        }
        of_text = (4,) if family.heads.late_interaction is None else (max(map(len, ids)), 4)
        vectors = (len(ids), *of_text) if ids[1:] else of_text
        shape = shapes.get(family.heads.task or "", vectors)
        reduced.append(split.reduce(row, logits(shape).astype(np.float32)))
    return split.records(reduced)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in FAMILIES[kind]],
)
def test_equal_logits_for_every_row_have_learnt_nothing(
    tmp_path: Path, kind: str, name: str
) -> None:
    family = opened(tmp_path / "task", kind, FAMILIES[kind][name])
    baseline = baseline_of(family, predicted(family, np.ones))
    assert baseline is not None
    assert baseline.metric == family.best_metric
    assert baseline.failure is not None


@pytest.mark.parametrize("name", ["pairs", "beir"])
def test_a_ranking_that_finds_its_passages_has_learnt_something(tmp_path: Path, name: str) -> None:
    family = opened(tmp_path / "task", "embedding", FAMILIES["embedding"][name])
    vectors = iter(np.tile(np.eye(ROWS, dtype=np.float32), (2, 1)))
    split = family.splits["dev"]
    rows = range(len(split.lengths))
    records = split.records([split.reduce(row, next(vectors)) for row in rows])
    baseline = baseline_of(family, records)
    assert baseline is not None
    assert baseline.failure is None
    # One order of all passages finds each at another rank.
    constant = sum(1 / np.log2(rank + 1) for rank in range(1, 11)) / ROWS
    assert (baseline.score, baseline.constant) == pytest.approx((1, constant))


def test_scattered_answers_are_no_better_than_whole_contexts(tmp_path: Path) -> None:
    family = opened(tmp_path / "task", "squad", FAMILIES["squad"]["1.1"])
    split = family.splits["dev"]
    assert isinstance(split, SquadSplit)
    rng = np.random.default_rng(3)
    scattered = baseline_of(family, predicted(family, lambda shape: rng.normal(size=shape)))
    assert scattered is not None
    assert scattered.constant > 0
    assert scattered.failure is not None
