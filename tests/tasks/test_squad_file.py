from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.squad.file import Answer, read_squad
from tests.tasks.squad_data import question, squad, write

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


SECOND = "data.0.paragraphs.0.qas.1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, q: c.pop("data"), "data: missing"),
        (lambda c, q: c.update(data=[]), "found no question"),
        (
            lambda c, q: c["data"].append("Towers"),
            'data.1: found "Towers", allowed: keys and values',
        ),
        (lambda c, q: q.pop("id"), f"{SECOND}.id: missing"),
        (lambda c, q: q.update(id="a"), f'{SECOND}: found the id "a"'),
        (lambda c, q: q.update(question=None), f"{SECOND}.question: found null"),
        (lambda c, q: q.update(is_impossible=True), f"{SECOND}: found is_impossible with 1 answer"),
        (
            lambda c, q: q["answers"][0].update(answer_start="0"),
            f'{SECOND}.answers.0.answer_start: found "0", allowed: an integer',
        ),
    ],
)
def test_a_malformed_file_names_the_place(tmp_path: Path, change: Any, message: str) -> None:
    content = squad((TOWER, [question("a", "when", ("1889", 32)), question("b", "?", ("the", 0))]))
    change(content, content["data"][0]["paragraphs"][0]["qas"][1])
    path = write(tmp_path / "x.json", content)
    with pytest.raises(UserError) as error:
        _read(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_version_1_1_refuses_unanswerable_questions(tmp_path: Path) -> None:
    content = squad((TOWER, [question(id, "who", impossible=True) for id in "ab"]))
    path = write(tmp_path / "train.json", content)
    with pytest.raises(UserError) as error:
        _read(path, "1.1")
    assert str(error.value) == (
        f'{path}: found 2 questions with is_impossible, allowed in version "1.1": none; '
        'set version to "2.0" or "auto"'
    )
