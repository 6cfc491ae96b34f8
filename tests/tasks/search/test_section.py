"""The settings and the data of sentence embeddings, and errors about them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SimilarityFunction

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import RowError
from bert_jax.errors import UserError
from bert_jax.model.text_head import PoolingSection
from bert_jax.tasks.embedding.section import EmbeddingSection
from bert_jax.tasks.family import Family, Split
from bert_jax.tasks.search.tuples import SCORE, TEACHER, TEXTS
from bert_jax.validation import validate
from tests.project import refuses, says
from tests.tasks.search.data import write_beir, write_jsonl, write_nano, write_qrels
from tests.tasks.sequences import IDS, opening, write_lines

CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]
SCORED = {"score": "s", "score_range": [0, 5], "loss": {"kind": "cosent"}}
ROWS = ["q,a,n,s", "w1,w2,w3,0", "w1 w4,w5,w6,5", "w7,w2,w8,2.5"]


def section_of(directory: Path, **changes: Any) -> EmbeddingSection:
    values = {"train": str(directory / "train.csv"), "anchor": "q", "positive": "a"} | changes
    return validate(EmbeddingSection, values, source="", key="task")


def opened(directory: Path, *roles: str, **changes: Any) -> Family:
    options = {key: changes.pop(key) for key in ("input", "seed") if key in changes}
    return section_of(directory, **changes).open(opening(directory, *roles, **options))


def texts_of(split: Split) -> list[list[list[int]]]:
    """Returns the ids of each text of each row, without special tokens."""
    rows = [split.row(row).sequences for row in range(len(split.lengths))]
    for row in rows:
        assert all((ids[0], ids[-1]) == (CLS, SEP) for ids in row)
    return [[list(ids)[1:-1] for ids in row] for row in rows]


def words(*numbers: int) -> list[int]:
    return [IDS[f"w{number}"] for number in numbers]


def test_triplets_have_prefixes_and_numbers_of_equal_texts(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.csv", ROWS)
    settings = {"negatives": ["n"], "query_prefix": "w10 ", "passage_prefix": "w11 "}
    split = opened(tmp_path, "train", **settings).splits["train"]
    assert texts_of(split)[1] == [words(10, 1, 4), words(11, 5), words(11, 6)]
    assert split.lengths.tolist() == [4, 5, 4]
    first, _, third = (np.ravel(split.row(row).targets[TEXTS]).tolist() for row in range(3))
    assert first[1] == third[1]
    assert len({*first, *third}) == 5


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet", "memory"])
def test_other_tables_have_the_same_rows(tmp_path: Path, suffix: str) -> None:
    names, *lines = (line.split(",") for line in ROWS)
    rows: list[dict[str, Any]] = [dict(zip(names, line, strict=True)) for line in lines]
    for row in rows:
        row["s"] = float(row["s"])
    path = tmp_path / f"train{suffix}"
    if suffix == ".tsv":
        write_lines(path, [line.replace(",", "\t") for line in ROWS])
    elif suffix == ".jsonl":
        write_jsonl(path, rows)
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        family = opened(tmp_path, "input", input=MemoryTable.of(rows), **SCORED)
        assert texts_of(family.splits["input"])[2] == [words(7), words(2)]
        return
    split = opened(tmp_path, "train", train=str(path), **SCORED).splits["train"]
    assert texts_of(split) == [[words(1), words(2)], [words(1, 4), words(5)], [words(7), words(2)]]
    assert [split.row(row).targets[SCORE] for row in range(3)] == [0, 1, 0.5]


def test_single_texts_are_encoded_twice(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.csv", ROWS)
    beir = write_beir(tmp_path / "beir", [ROW, {"question": "w5", "answer": "w6 w7"}])
    changes = {"loss": {"kind": "simcse"}, "dev": str(beir)}
    family = opened(tmp_path, **changes, positive=None)
    assert texts_of(family.splits["train"])[0] == [words(1), words(1)]
    assert family.best_metric == "ndcg@10"
    with refuses("embedding.no_dev", place="task.dev"):
        opened(tmp_path, loss={"kind": "simcse"})
    with refuses("embedding.no_pairs", place="task.positive", role="dev"):
        opened(tmp_path, positive=None, loss={"kind": "simcse"}, dev=str(tmp_path / "train.csv"))


LIST = [{"q": "w1", "a": "w2", "n": "w3", "s": [5, 2.5]}, {"q": "w4", "a": "w5", "n": "w6"}]
WRONG = {"too many": [1, 2, 3], "none": [], "a text": "high", "nested": [[1, 2]], "null": None}


@pytest.mark.parametrize(
    ("kind", "teacher", "second", "expected"),
    [
        ("kl", "s", [-1, 3], [[5, 2.5], [-1, 3]]),
        ("margin_mse", "s", [-1, 3], [[5, 2.5], [-1, 3]]),
        ("margin_mse", "s", [4], [[5, 2.5], [0, -4]]),  # a margin
        ("margin_mse", "s", 4, [[5, 2.5], [0, -4]]),
    ],
)
def test_scores_of_a_teacher_are_targets(
    tmp_path: Path, kind: str, teacher: str, second: Any, expected: list[list[float]]
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [LIST[0], LIST[1] | {"s": second}])
    settings = {"negatives": "n", "teacher_score": teacher, "loss": {"kind": kind}}
    family = opened(tmp_path, train=str(train), dev_fraction=0.5, **settings)
    assert len(family.splits["dev"].lengths) == 1 + 2  # the negative is a passage
    split = opened(tmp_path, "train", train=str(train), **settings).splits["train"]
    assert [list(split.row(row).targets[TEACHER]) for row in (0, 1)] == expected


def test_scores_of_a_teacher_may_have_a_column_each(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.csv", ["q,a,n,x,y", "w1,w2,w3,5,2.5"])
    settings = {"negatives": "n", "loss": {"kind": "kl"}}
    family = opened(tmp_path, "train", teacher_score=["x", "y"], **settings)
    assert list(family.splits["train"].row(0).targets[TEACHER]) == [5, 2.5]
    place = f'{tmp_path / "train.csv"}: line 2: column "x"'
    with refuses("embedding.teacher", place=place, wanted="2 numbers"):
        opened(tmp_path, "train", teacher_score="x", **settings)  # kl needs scores


@pytest.mark.parametrize("kind", ["kl", "margin_mse", "mse"])
@pytest.mark.parametrize("found", WRONG)
def test_wrong_numbers_of_a_teacher_are_named_or_skipped(
    tmp_path: Path, kind: str, found: str
) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", [LIST[0], LIST[1] | {"s": WRONG[found]}])
    column = "teacher_vector" if kind == "mse" else "teacher_score"
    settings: dict[str, Any] = {column: "s", "loss": {"kind": kind}, "train": str(train)}
    settings |= {} if kind == "mse" else {"negatives": "n"}
    with refuses("embedding.teacher", place=f'{train}: line 2: column "s"', wanted="2 numbers"):
        opened(tmp_path, "train", **settings)
    family = opened(tmp_path, "train", **settings, on_error="skip")
    assert family.splits["train"].examples == 1


def test_a_dev_set_is_held_out_without_separating_equal_anchors(tmp_path: Path) -> None:
    rows = [f"w{number // 2},w{number},w3,{number % 5}" for number in range(40)]
    write_lines(tmp_path / "train.csv", ["q,a,n,s", *rows])
    family = opened(tmp_path, dev_fraction=0.2)
    train, dev = (family.splits[role] for role in ("train", "dev"))
    assert dev.examples == 4  # queries
    assert len(train.lengths) == 32
    assert len(dev.lengths) == 4 + 8
    anchors = {tuple(row[0]) for row in texts_of(train)}
    assert not anchors & {tuple(row[0]) for row in texts_of(dev)[:4]}
    again = opened(tmp_path, dev_fraction=0.2)
    assert family.content == again.content
    scored = opened(tmp_path, dev_fraction=0.2, **SCORED)
    assert (scored.best_metric, scored.splits["dev"].examples) == ("spearman", 8)
    write_lines(tmp_path / "train.csv", ROWS[:2])
    with refuses("embedding.no_dev_rows", rows=1):
        opened(tmp_path)


ROW = {"question": "w1 w2", "answer": "w3 w4"}


def test_a_directory_of_beir_is_a_retrieval(tmp_path: Path) -> None:
    rows = [ROW, {"question": "w5", "answer": "w6 w7"}, {"question": "w8", "answer": "w9 w1"}]
    beir = write_beir(tmp_path / "beir", rows)
    write_qrels(beir, [("q0", "p0", 2), ("q0", "p1", 0), ("q2", "p2", 1)])
    settings = {"query_prefix": "w10 ", "passage_prefix": "w11 "}
    family = opened(tmp_path, "dev", dev=str(beir), **settings)
    split = family.splits["dev"]
    assert split.examples == 2  # the query q1 is not judged
    passages = [words(11, 3, 4), words(11, 6, 7), words(11, 9, 1)]
    assert texts_of(split) == [[each] for each in (words(10, 1, 2), words(10, 8), *passages)]


def test_a_set_of_nano_beir_equals_its_directory_of_beir(tmp_path: Path) -> None:
    """Relevance without grades; a query's relevant passages may be a list."""
    rows = [ROW, {"question": "w5", "answer": "w6 w7"}]
    nano = write_nano(tmp_path / "nano", rows, [])
    beir = write_beir(tmp_path / "beir", rows)
    for _ in ("ids", "lists"):
        found = {each.name: opened(tmp_path, "dev", dev=str(each)) for each in (nano, beir)}
        assert found["NanoMade"].content == found["beir"].content
        lists = [{"query-id": f"q{at}", "corpus-id": [f"p{at}", "p1"]} for at in range(2)]
        pq.write_table(pa.Table.from_pylist(lists), next(nano.parent.glob("qrels/NanoMade*")))
        write_qrels(beir, [("q0", "p0", 1), ("q0", "p1", 1), ("q1", "p1", 1)])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("normalize", [True, False])
def test_evaluation_compares_vectors_as_sentence_transformers(
    similarity: str, normalize: bool, tmp_path: Path
) -> None:
    """Vectors are cut after normalisation, and the checkpoint's similarity compares them."""
    rows = [ROW, {"question": "w5", "answer": "w6 w7"}, {"question": "w8", "answer": "w9 w1"}]
    beir = write_beir(tmp_path / "beir", rows)
    write_qrels(beir, [(f"q{number}", f"p{number}", 1) for number in range(3)])
    values = {"normalize": normalize, "dimensions": 3, "similarity": similarity}
    embedding = validate(PoolingSection, values, source="")
    request = opening(tmp_path, "dev")._replace(text_head=embedding)
    split = section_of(tmp_path, dev=str(beir)).open(request).splits["dev"]
    vectors = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    if normalize:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    records = split.records([split.reduce(at, vectors[at]) for at in range(6)])
    compare = SimilarityFunction.to_similarity_fn(similarity)
    expected = compare(vectors[:3, :3], vectors[3:, :3]).numpy()
    for record, scores in zip(records, expected, strict=True):
        order = np.argsort(-scores)
        assert record["prediction"] == [f"p{at}" for at in order]
        np.testing.assert_allclose(record["scores"], scores[order], atol=1e-6)
    asked = section_of(tmp_path, dev=str(beir), normalize=False).head(embedding, request.tokenizer)
    assert (asked.dimensions, asked.by_cosine) == (3, False)


Broken = tuple[list[tuple[str, str, object]], str, str, dict[str, object]]

QRELS: dict[str, Broken] = {
    "no relevant passage": (
        [("q0", "p0", 0), ("q1", "p9", 1), ("q9", "p0", 1)],
        "embedding.no_relevant_passage",
        "",
        {"passages": "corpus"},
    ),
    "grade": ([("q0", "p0", "x")], "embedding.grade", 'line 2: column "score"', {"found": "x"}),
}


@pytest.mark.parametrize("name", QRELS)
def test_a_wrong_relevance_file_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    rows, key, place, values = QRELS[name]
    beir = write_beir(tmp_path / "beir", [ROW, ROW])
    path = write_qrels(beir, rows)
    with refuses(key, kind=UserError, place=f"{path}: {place}".removesuffix(": "), **values):
        opened(tmp_path, "dev", dev=str(beir))


def test_a_json_line_without_its_id_is_named_or_skipped(tmp_path: Path) -> None:
    rows = [{"id": number, "q": f"w{number}", "a": "w1"} for number in range(4)]
    del rows[2]["id"]
    path = write_jsonl(tmp_path / "train.jsonl", rows)
    with refuses("table.row_without_column", place=f"{path}: line 3", missing="id"):
        opened(tmp_path, "train", train=str(path))
    family = opened(tmp_path, "train", train=str(path), on_error="skip")
    assert family.splits["train"].examples == 3


def test_a_query_without_its_id_is_named(tmp_path: Path) -> None:
    beir = write_beir(tmp_path / "beir", [ROW, ROW])
    queries = beir / "queries.jsonl"
    queries.write_text(queries.read_text().replace('"q1"', "null"))
    place = f'{queries}: line 2: column "_id"'
    with refuses("table.id", kind=RowError, place=place, found=None):
        opened(tmp_path, "dev", dev=str(beir))


def test_a_test_directory_is_checked_before_the_training(tmp_path: Path) -> None:
    pairs = [f"w{number},w{number + 1}" for number in range(20)]
    write_lines(tmp_path / "train.csv", ["q,a", *pairs])
    beir = write_beir(tmp_path / "beir", [ROW, ROW], role="test")
    path = write_qrels(beir, [("q0", "p0", 1), ("q1", "p9", 1)], role="test")
    family = opened(tmp_path, "train", "dev", test=str(beir))
    notes = [note for note in family.notes if note.startswith(f"{path}: ")]
    assert ["1 judgements" in notes[0], "1 of 2 queries" in notes[1]] == [True, True]
    (beir / "corpus.jsonl").unlink()
    with refuses("file.missing", place=f"{beir}/corpus.jsonl"):
        opened(tmp_path, "train", "dev", test=str(beir))


def test_an_empty_query_is_named_with_its_line(tmp_path: Path) -> None:
    beir = write_beir(tmp_path / "beir", [ROW, {"question": " ", "answer": "w1 w2"}])
    place = f'{beir}/queries.jsonl: line 2: column "text"'
    with refuses("embedding.empty_text", kind=RowError, place=place):
        opened(tmp_path, "dev", dev=str(beir))


@pytest.mark.parametrize(
    ("line", "key", "column", "values"),
    [
        ("w1,,w3,1", "embedding.empty_text", "a", {}),
        ("w1,w2, ,1", "embedding.empty_text", "n", {}),
        ("w1,w2,w3,6", "embedding.score", "s", {"found": "6", "low": 0, "high": 5}),
        ("w1,w2,w3,-0.1", "embedding.score", "s", {"found": "-0.1"}),
        ("w1,w2,w3,high", "embedding.score", "s", {"found": "high"}),
        ("w1,w2,w3,", "embedding.score", "s", {"found": ""}),
    ],
    ids=("positive", "negative", "too large", "too small", "no number", "missing"),
)
def test_a_malformed_row_is_named_or_skipped(
    tmp_path: Path, line: str, key: str, column: str, values: dict[str, object]
) -> None:
    path = write_lines(tmp_path / "train.csv", [*ROWS[:2], line, *ROWS[2:]])
    settings: dict[str, Any] = SCORED if column == "s" else {"negatives": ["n"]}
    place = f'{path}: line 3: column "{column}"'
    with refuses(key, kind=UserError, place=place, **values) as error:
        opened(tmp_path, "train", **settings)
    says(error.value, setting="finetune.task.on_error=skip")
    family = opened(tmp_path, "train", **settings, on_error="skip")
    assert family.splits["train"].examples == 3
    assert family.notes[0].startswith(f"{path}: skipped 1 of 4 rows")


@pytest.mark.parametrize(
    ("changes", "key", "place"),
    [
        ({"positive": None}, "embedding.column", "task.positive"),
        ({"loss": {"kind": "cosent"}}, "embedding.column", "task.score"),
        ({"score_range": [1, 1]}, "embedding.score_range", "task.score_range"),
        ({"teacher_score": "s"}, "setting.ignored", "task.teacher_score"),
        ({"teacher_vector": "s"}, "setting.ignored", "task.teacher_vector"),
        ({"loss": {"kind": "kl"}}, "embedding.column", "task.negatives"),
        ({"loss": {"kind": "kl"}, "negatives": "n"}, "embedding.column", "task.teacher_score"),
        ({"loss": {"kind": "mse"}}, "embedding.column", "task.teacher_vector"),
        (
            {"loss": {"teacher_temperature": 2}},
            "setting.ignored",
            "task.loss.teacher_temperature",
        ),
        (
            {"score": "s", "loss": {"kind": "cosine", "temperature": 0.1}},
            "setting.ignored",
            "task.loss.temperature",
        ),
        (
            {"score": "s", "loss": {"kind": "cosine", "symmetric": True}},
            "setting.ignored",
            "task.loss.symmetric",
        ),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, changes: dict[str, Any], key: str, place: str
) -> None:
    with refuses(key, place=place):
        section_of(tmp_path, **changes)


def test_scores_need_a_loss_that_reads_them(tmp_path: Path) -> None:
    """`info_nce` would take a pair with the score 0 as texts that fit."""
    train = write_lines(tmp_path / "train.csv", ROWS)
    with refuses("embedding.score_ignored", place="task.score", column="s", table=train):
        opened(tmp_path, score="s")
    for column in ("label", "score", "is_duplicate"):
        write_lines(train, [f"q,a,n,{column}", *ROWS[1:]])
        with refuses("embedding.score_ignored", column=column):
            opened(tmp_path, "train")
        write_lines(train, [f"q,a,n,{column}", "w1,w2,w3,1", "w4,w5,w6,1"])
        opened(tmp_path, "train")
    dev = write_lines(tmp_path / "dev.csv", ROWS)
    write_lines(train, [row.rsplit(",", 1)[0] for row in ROWS])
    family = opened(tmp_path, score="s", score_range=[0, 5], dev=str(dev))
    assert family.best_metric == "spearman"


@pytest.mark.parametrize(
    ("rows", "settings", "found"),
    [
        (["w1,w2,w3,1"], {}, "1 in all"),
        (["w1,w2,w3,1", "w1,w4,w3,1"], {}, "2 in all"),
        (["w1,w2,w3,1", "w4,w2,w3,1"], {}, "1 in all"),
        (["w1,w2,w3,5"], SCORED, "(1)"),
        (["w1,w2,w3,5", "w4,w5,w3,5"], SCORED, "(2)"),
    ],
)
def test_a_dev_set_without_a_choice_is_refused(
    tmp_path: Path, rows: list[str], settings: dict[str, Any], found: str
) -> None:
    """Every model would have an nDCG of 1, or no rank correlation."""
    write_lines(tmp_path / "train.csv", ROWS)
    dev = write_lines(tmp_path / "dev.csv", [ROWS[0], *rows])
    with refuses("embedding.dev_undecided", place="task.dev") as error:
        opened(tmp_path, **settings, dev=str(dev))
    assert found in str(error.value)
    assert opened(tmp_path, "dev", **settings, dev=str(dev)).splits["dev"].examples > 0
    write_lines(dev, [*ROWS[:3], *rows])
    notes = opened(tmp_path, **settings, dev=str(dev)).notes
    assert any("ndcg@10 of any order is high" in note for note in notes) == (not settings)


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.csv", ROWS)
    with refuses("table.column_unknown", place="task.negatives", found="no"):
        opened(tmp_path, "train", negatives="no")


def test_a_negative_lower_bound_keeps_the_sign_of_scores(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.csv", ["q,a,s", "w1,w2,-1", "w3,w4,0", "w5,w6,0.5"])
    settings = {"score": "s", "score_range": [-1, 1], "loss": {"kind": "cosine"}}
    split = opened(tmp_path, "train", **settings).splits["train"]
    assert [split.row(row).targets[SCORE] for row in range(3)] == [-1, 0, 0.5]
