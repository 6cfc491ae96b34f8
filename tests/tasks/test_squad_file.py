from pathlib import Path
from typing import Any

import pytest

from bert_jax.tasks.squad.file import Answer, read_squad
from tests.project import refuses
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
