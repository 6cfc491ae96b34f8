import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.config import parse_config
from bert_jax.tasks.squad.file import Answer, read_squad
from bert_jax.tasks.squad.question_rows import read_question_rows
from bert_jax.verbs.finetune import with_tables
from tests.project import refuses
from tests.tasks.squad_data import open_one, question, squad, write

TOWER = "the tower of paris was built in 1889"


def _read(path: str, version: Any = "auto", *, needs_answers: bool = True) -> Any:
    return read_squad(path, version=version, needs_answers=needs_answers)


def test_questions_keep_file_order_and_all_answers(tmp_path: Path) -> None:
    path = write(
        tmp_path / "dev.json",
        squad(
            (TOWER, [question("b", "when", ("1889", 32), ("in 1889", 29)), question("a", "who")]),
            ("", [question("c", "", impossible=True)]),
            version="v2.0",
        ),
    )
    file = _read(path)
    assert [one.id for one in file.questions] == ["b", "a", "c"]
    assert file.questions[0].answers == (Answer("1889", 32), Answer("in 1889", 29))
    assert file.questions[0].title == "Towers"
    assert file.questions[0].context is file.questions[1].context
    assert file.questions[1].answers == file.questions[2].answers == ()


def test_ids_may_be_numbers_and_titles_null(tmp_path: Path) -> None:
    content = squad((TOWER, [question("a", "when", ("1889", 32))]), version="1.1")
    article = content["data"][0]
    article["title"], article["paragraphs"][0]["qas"][0]["id"] = None, 51870
    (only,) = _read(write(tmp_path / "x.json", content)).questions
    assert (only.id, only.title) == ("51870", "")


def test_offsets_may_be_whole_floats(tmp_path: Path) -> None:
    content = squad((TOWER, [question("a", "when", ("1889", 32))]), version="1.1")
    answer = content["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]
    answer["answer_start"] = 32.0  # pandas, if other rows have no answer
    (only,) = _read(write(tmp_path / "x.json", content)).questions
    assert only.answers == (Answer("1889", 32),)
    answer["answer_start"] = 32.5
    with refuses("setting.value", found="32.5"):
        _read(write(tmp_path / "x.json", content))
    for answers in ({"text": ["1889"], "answer_start": [32.0]}, [{**answer, "answer_start": 32.0}]):
        path = rows_file(tmp_path / "rows.parquet", [answers])
        (only,) = read_question_rows(path, version="auto", needs_answers=True).questions
        assert only.answers == (Answer("1889", 32),)


def test_an_empty_answer_is_no_answer(tmp_path: Path) -> None:
    questions = [question("a", "when", ("1889", 32)), question("b", "who", ("", -1))]
    questions.append(question("c", "why", ("", 0), impossible=True))
    file = _read(write(tmp_path / "x.json", squad((TOWER, questions), version="v2.0")))
    assert [one.answers for one in file.questions] == [(Answer("1889", 32),), (), ()]
    path = rows_file(tmp_path / "rows.jsonl", [one["answers"] for one in questions])
    file = read_question_rows(path, version="auto", needs_answers=True)
    assert [one.answers for one in file.questions] == [(Answer("1889", 32),), (), ()]


def test_an_impossible_row_has_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"context": TOWER, "question": "who", "is_impossible": True, "answers": NONE}
    path.write_text(json.dumps(row))
    (only,) = read_question_rows(path, version="2.0", needs_answers=False).questions
    assert only.answers is None
    path.write_text(json.dumps(row | {"answers": {"text": [""], "answer_start": [-1]}}))
    (only,) = read_question_rows(path, version="2.0", needs_answers=False).questions
    assert only.answers is None
    path.write_text(json.dumps(row | {"is_impossible": "False"}))
    place = f'{path}: line 1: column "is_impossible"'
    with refuses("squad.is_impossible", place=place, found="False"):
        read_question_rows(path, version="auto", needs_answers=True)
    path.write_text(json.dumps(row | {"is_impossible": 1, "answers": ANSWER}))
    with refuses("squad.impossible_with_answers", place=f"{path}: line 1", answers=2):
        read_question_rows(path, version="auto", needs_answers=True)


@pytest.mark.parametrize(
    ("says", "impossible", "expected"),
    [
        ("1.1", None, "1.1"),
        ("1.1", True, "2.0"),
        ("v2.0", None, "2.0"),
        ("v2.0", False, "2.0"),
        ("2.0", None, "2.0"),
    ],
)
def test_the_version_is_detected(
    tmp_path: Path, says: str, impossible: bool | None, expected: str
) -> None:
    other = () if impossible else (("1889", 32),)
    content = squad(
        (TOWER, [question("a", "when", ("1889", 32)), question("b", "?", *other)]), version=says
    )
    if impossible is not None:
        content["data"][0]["paragraphs"][0]["qas"][1]["is_impossible"] = impossible
    assert _read(write(tmp_path / "x.json", content)).version == expected


def rows_file(path: Path, answers: list[Any]) -> Path:
    """Writes a row per list of answers, as `datasets` does."""
    rows = [
        {"id": f"q{n}", "title": "Towers", "context": TOWER, "question": "when", "answers": each}
        for n, each in enumerate(answers)
    ]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


ANSWER = {"text": ["1889", "in 1889"], "answer_start": [32, 29]}
NONE = {"text": [], "answer_start": []}
SQUADS = [{"text": "1889", "answer_start": 32}, {"text": "in 1889", "answer_start": 29}]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("answers", [ANSWER, SQUADS], ids=["lists", "objects"])
def test_rows_of_datasets_are_read(tmp_path: Path, suffix: str, answers: Any) -> None:
    empty = [] if isinstance(answers, list) else NONE
    path = rows_file(tmp_path / f"rows{suffix}", [answers, answers])
    file = read_question_rows(path, version="auto", needs_answers=True)
    assert (file.version, [one.id for one in file.questions]) == ("1.1", ["q0", "q1"])
    assert file.questions[0].answers == (Answer("1889", 32), Answer("in 1889", 29))
    path = rows_file(tmp_path / f"rows{suffix}", [answers, empty])
    file = read_question_rows(path, version="auto", needs_answers=True)
    assert (file.version, file.questions[1].answers) == ("2.0", ())
    # The answers of a test set are hidden.
    path = rows_file(tmp_path / f"rows{suffix}", [empty, empty])
    file = read_question_rows(path, version="auto", needs_answers=False)
    assert (file.version, file.questions[0].answers) == ("1.1", None)
    with refuses("squad.no_answers", place=f"{path}: {UNIT[suffix]} 1: answers"):
        read_question_rows(path, version="auto", needs_answers=True)


UNIT = {".jsonl": "line", ".parquet": "row"}


@pytest.mark.parametrize(
    "answers",
    ["1889", {"text": ["a"], "answer_start": []}, {"text": "a", "answer_start": 1}, ["a"], [{}]],
)
def test_other_answers_are_named(tmp_path: Path, answers: Any) -> None:
    path = rows_file(tmp_path / "rows.jsonl", [ANSWER, answers])
    place = f'{path}: line 2: column "answers"'
    with refuses("squad.row_answers", place=place, found=repr(answers)):
        read_question_rows(path, version="auto", needs_answers=True)


def test_rows_in_a_json_file_are_named_with_the_suffix_to_use(tmp_path: Path) -> None:
    row = {"id": "a", "context": TOWER, "question": "when", "answers": ANSWER}
    lines = f"{json.dumps(row)}\n" * 2
    forms = {
        "squad.flat_rows": json.dumps({"data": [row]}),
        "json.kind": json.dumps([row]),
        "json.invalid": lines,
    }
    for key, content in forms.items():
        path = tmp_path / "rows.json"
        path.write_text(content)
        with refuses(key, place=path) as error:
            _read(str(path))
        assert ".jsonl" in str(error.value)
        assert ". Write" in str(error.value)


@pytest.mark.parametrize("form", ["rows", "pandas"])
def test_a_family_of_rows_in_memory(tmp_path: Path, form: str) -> None:
    task = {"kind": "squad", "max_query_length": 8}
    config = {"run_dir": str(tmp_path / "run"), "finetune": {"init_from": "x", "task": task}}
    rows: Any = [{"question": "when", "context": TOWER, "answers": ANSWER}] * 2
    if form == "pandas":  # with arrays inside dicts
        rows = datasets.Dataset.from_list(rows).to_pandas()
    with_tables(parse_config(config, source="a.yaml"), {"dev": rows})
    split = open_one(str(tmp_path / "run" / "data" / "dev.jsonl")).splits["dev"]
    assert split.examples == 2


SECOND = "data.0.paragraphs.0.qas.1"


@pytest.mark.parametrize(
    ("change", "place", "key", "values"),
    [
        (lambda c, q: c.pop("data"), ": data", "setting.missing", {}),
        (lambda c, q: c.update(data=[]), "", "squad.no_questions", {}),
        (
            lambda c, q: c["data"].append("Towers"),
            ": data.1",
            "setting.value",
            {"found": '"Towers"', "allowed": "keys and values"},
        ),
        (lambda c, q: q.pop("id"), f": {SECOND}.id", "setting.missing", {}),
        (lambda c, q: q.update(id="a"), f": {SECOND}", "squad.repeated_id", {"found": "a"}),
        (
            lambda c, q: q.update(question=None),
            f": {SECOND}.question",
            "setting.value",
            {"found": "null"},
        ),
        (
            lambda c, q: q.update(is_impossible=True),
            f": {SECOND}",
            "squad.impossible_with_answers",
            {"answers": 1},
        ),
        (
            lambda c, q: q["answers"][0].update(answer_start="0"),
            f": {SECOND}.answers.0.answer_start",
            "setting.value",
            {"found": '"0"', "allowed": "an integer"},
        ),
    ],
)
def test_a_malformed_file_names_the_place(
    tmp_path: Path, change: Any, place: str, key: str, values: dict[str, Any]
) -> None:
    content = squad((TOWER, [question("a", "when", ("1889", 32)), question("b", "?", ("the", 0))]))
    change(content, content["data"][0]["paragraphs"][0]["qas"][1])
    path = write(tmp_path / "x.json", content)
    with refuses(key, place=f"{path}{place}", **values):
        _read(path)


def test_version_1_1_refuses_unanswerable_questions(tmp_path: Path) -> None:
    content = squad((TOWER, [question(id, "who", impossible=True) for id in "ab"]))
    path = write(tmp_path / "train.json", content)
    with refuses("squad.impossible_in_1_1", place=path, found=2):
        _read(path, "1.1")
