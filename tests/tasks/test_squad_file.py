from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.squad.file import Answer, read_squad
from tests.tasks.squad_data import question, squad, write

TOWER = "the tower of paris was built in 1889"


def _read(path: str, version: Any = "auto", *, needs_answers: bool = True) -> Any:
    return read_squad(path, version=version, needs_answers=needs_answers)


def test_questions_come_in_the_order_of_the_file_with_all_their_answers(tmp_path: Path) -> None:
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
def test_version_is_found_in_the_file(
    tmp_path: Path, says: str, impossible: bool | None, expected: str
) -> None:
    other = () if impossible else (("1889", 32),)
    content = squad(
        (TOWER, [question("a", "when", ("1889", 32)), question("b", "?", *other)]), version=says
    )
    if impossible is not None:
        content["data"][0]["paragraphs"][0]["qas"][1]["is_impossible"] = impossible
    assert _read(write(tmp_path / "x.json", content)).version == expected


def _broken(change: str) -> Any:
    content = squad((TOWER, [question("a", "when", ("1889", 32)), question("b", "?", ("the", 0))]))
    article = content["data"][0]
    paragraph = article["paragraphs"][0]
    second = paragraph["qas"][1]
    match change:
        case "no id":
            del second["id"]
        case "no data":
            content = {"Data": []}
        case "data is no list":
            content["data"] = {}
        case "article is no object":
            content["data"].append("Towers")
        case "no context":
            del paragraph["context"]
        case "no start":
            del second["answers"][0]["answer_start"]
        case "start is text":
            second["answers"][0]["answer_start"] = "0"
        case "number as id":
            second["id"] = 12
        case "null question":
            second["question"] = None
        case "same id":
            second["id"] = "a"
        case "contradiction":
            second["is_impossible"] = True
        case "no question":
            content["data"] = []
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no id", 'data[0].paragraphs[0].qas[1]: no "id"'),
        ("no data", 'no "data"'),
        ("data is no list", "data: found an object, allowed: a list"),
        ("article is no object", "data[1]: found 'Towers', allowed: an object"),
        ("no context", 'data[0].paragraphs[0]: no "context"'),
        ("no start", 'data[0].paragraphs[0].qas[1].answers[0]: no "answer_start"'),
        (
            "start is text",
            "data[0].paragraphs[0].qas[1].answers[0].answer_start: found '0', allowed: an integer",
        ),
        ("number as id", "data[0].paragraphs[0].qas[1].id: found 12, allowed: a string"),
        (
            "null question",
            "data[0].paragraphs[0].qas[1].question: found null, allowed: a string",
        ),
        (
            "same id",
            'data[0].paragraphs[0].qas[1]: found the id "a" of data[0].paragraphs[0].qas[0] again, '
            "allowed: each id once",
        ),
        (
            "contradiction",
            "data[0].paragraphs[0].qas[1]: found is_impossible with 1 answers, allowed: none",
        ),
        ("no question", "found no question, allowed: at least one"),
    ],
)
def test_a_ragged_file_is_refused_at_the_place(tmp_path: Path, change: str, message: str) -> None:
    path = write(tmp_path / "x.json", _broken(change))
    with pytest.raises(UserError) as error:
        _read(path)
    assert str(error.value) == f"{path}: {message}"
