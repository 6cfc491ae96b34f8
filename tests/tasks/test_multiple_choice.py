import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.family import DataRequest, Family
from bert_jax.text import Tokenizer
from tests.project import refuses
from tests.tasks.sequences import predict, small_tokenizer

SWAG = """\
,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,a,1,"the old dog. the mill",the old dog.,the mill,gold,saw,"saw a, river",unseen,in,1
1,b,2,"a. the",a.,the,gold,dog,mill,river,saw,3
"""
CODAH = 'i\tthe "old mill\tsaw a dog\tin\tsaw\tdogs\t2\no\tdogs\ta\tthe\told\tunseen\t0\n'
HEADER = "q,x,y,z,answer"
ROW = ": line 2"
LABEL = ': line 2: column "answer"'
THREE = {"text": "q", "choices": ("x", "y", "z"), "label": "answer"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def open_file(
    tokenizer: Tokenizer, directory: Path, content: str, *, name: str = "file.csv", **settings: Any
) -> Family:
    path = directory / name
    path.write_bytes(content.encode())
    request = DataRequest(tokenizer, max_length=32, seed=0, roles=("train",))
    return MultipleChoiceSection(train=str(path), **settings).open(request)


def test_swag_has_a_sequence_for_every_ending(tokenizer: Tokenizer, tmp_path: Path) -> None:
    family = open_file(tokenizer, tmp_path, SWAG, format="swag")
    assert family.heads.task == "multiple_choice"
    split = family.splits["train"]
    row = split.row(0)
    assert [" ".join(tokenizer.pieces(ids)) for ids in row.sequences] == [
        "[CLS] the old dog . [SEP] the mill saw [SEP]",
        "[CLS] the old dog . [SEP] the mill saw a [UNK] river [SEP]",
        "[CLS] the old dog . [SEP] the mill un ##seen [SEP]",
        "[CLS] the old dog . [SEP] the mill in [SEP]",
    ]
    assert list(row.seconds) == [6] * 4
    assert row.targets == {"label": 1}
    assert split.lengths.tolist() == [13, 7]
    assert split.lengths.dtype == np.int32


LISTS = {"text": "q", "choices": ("c",), "label": "y"}


@pytest.mark.parametrize(
    ("choices", "label", "settings", "target"),
    [
        (["saw", "mill", "dog"], 2, {}, 2),
        (["saw", "mill", "dog"], "1", {}, 1),  # HellaSwag
        (["saw", "mill", "dog"], 1.0, {}, 1),
        (["saw", "mill", "dog"], "mill", {"label_is": "text"}, 1),
        (["saw", "mill", "dog"], "C", {"label_is": ("A", "B", "C")}, 2),  # RACE
        ({"text": ["saw", "mill"], "label": ["A", "B"]}, "B", {}, 1),  # ARC, CommonsenseQA
        ({"text": ["saw", "mill"], "label": ["1", "2"]}, "1", {}, 0),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_column_of_lists_has_the_choices(
    tokenizer: Tokenizer,
    tmp_path: Path,
    suffix: str,
    choices: Any,
    label: Any,
    settings: dict[str, Any],
    target: int,
) -> None:
    path = tmp_path / f"rows.{suffix}"
    first = label if settings or isinstance(choices, dict) else type(label)(0)
    rows = [{"q": "the old dog", "c": choices, "y": each} for each in (label, first)]
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    request = DataRequest(tokenizer, max_length=32, seed=0, roles=("train",))
    section = MultipleChoiceSection(train=str(path), **LISTS | settings)
    row = section.open(request).splits["train"].row(0)
    assert (row.targets, len(row.sequences)) == ({"label": target}, 2 + isinstance(choices, list))


@pytest.mark.parametrize(
    ("row", "key", "values"),
    [
        ({"c": "saw"}, "choice.list", {"column": "c", "found": "'saw'"}),
        ({"c": ["saw"]}, "choice.list", {"found": "['saw']"}),
        ({"c": ["saw", ""]}, "choice.empty", {"column": "1"}),
        ({"y": 2}, "label.unknown", {"found": "2", "allowed": ["0", "1"]}),
        ({"y": -1}, "choice.no_label", {}),
    ],
)
def test_malformed_lists_of_choices_are_named(
    tokenizer: Tokenizer, tmp_path: Path, row: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    good = {"q": "dog", "c": ["saw", "mill"], "y": 0}
    content = "".join(f"{json.dumps(each)}\n" for each in (good, good | row))
    with refuses(key, **values) as error:
        open_file(tokenizer, tmp_path, content, name="rows.jsonl", **LISTS)
    assert str(error.value.place).startswith(f"{tmp_path}/rows.jsonl: line 2")


def test_the_test_set_of_datasets_has_no_labels(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text(SWAG.replace("unseen,in,1", "unseen,in,-1"))
    request = DataRequest(tokenizer, max_length=32, seed=0, roles=("test",))
    split = MultipleChoiceSection(test=str(path), format="swag").open(request).splits["test"]
    assert [split.row(index).targets for index in range(2)] == [{}, {"label": 3}]


def test_codah_has_no_header_and_no_quotes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    family = open_file(tokenizer, tmp_path, CODAH, name="file.tsv", format="codah")
    split = family.splits["train"]
    assert [split.row(index).targets for index in range(2)] == [{"label": 2}, {"label": 0}]
    first, second = predict(split, [[0, 1, 2, np.log(3)], [0, 0, 0, 0]])
    assert first["text"] == 'the "old mill'
    assert first["choices"] == ["saw a dog", "in", "saw", "dogs"]
    assert (first["label"], first["prediction"]) == (2, 2)
    weights = np.array([1, np.e, np.e**2, 3])
    assert first["probabilities"] == pytest.approx(weights / weights.sum())
    assert second["probabilities"] == [0.25] * 4
    assert family.score([first, second]) == {"accuracy": 1.0}
    assert family.score([{**first, "prediction": 3}, second]) == {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("label_is", "labels"),
    [
        ("index", ("2", "0")),
        ("column", ("z", "x")),
        ("text", ("mill", "dog")),
        (("A", "B", "C"), ("C", "A")),
        (("1", "2", "3"), ("3", "1")),
    ],
)
def test_the_right_choice_has_four_notations(
    tokenizer: Tokenizer, tmp_path: Path, label_is: Any, labels: tuple[str, str]
) -> None:
    text = f"q,x,y,z,answer\nthe,dog,river,mill,{labels[0]}\nthe,dog,river,mill,{labels[1]}\n"
    family = open_file(tokenizer, tmp_path, text, label_is=label_is, **THREE)
    split = family.splits["train"]
    assert [split.row(index).targets["label"] for index in range(2)] == [2, 0]


@pytest.mark.parametrize(
    ("rows", "changes", "place", "key", "values"),
    [
        (f"{HEADER}\n", {}, "", "task.no_rows", {}),
        (f"{HEADER}\na,b,c,d\n", {}, ROW, "table.fields", {"found": 4, "allowed": 5}),
        (f"{HEADER}\na,b,,d,1\n", {}, f'{ROW}: column "y"', "choice.empty", {"choices": 3}),
        (f"{HEADER}\na,b,c,d,\n", {}, ROW, "choice.no_label", {}),
        (
            f"{HEADER}\na,b,c,d,3\n",
            {},
            LABEL,
            "label.unknown",
            {
                "found": "3",
                "allowed": ["0", "1", "2"],
                "hint": '; if labels count from 1, set label_is: ["1", "2", "3"]',
            },
        ),
        (
            f"{HEADER}\na,b,c,d,y\n",
            {},
            LABEL,
            "label.unknown",
            {"found": "y", "hint": "; did you mean label_is: column?"},
        ),
        (
            f"{HEADER}\na,b,c,d,c\n",
            {},
            LABEL,
            "label.unknown",
            {"found": "c", "hint": "; did you mean label_is: text?"},
        ),
        (
            f"{HEADER}\na,b,b,d,b\n",
            {"label_is": "text"},
            LABEL,
            "choice.label_ambiguous",
            {"found": "b", "times": 2},
        ),
        (
            "q,x,y,zz,answer\na,b,c,d,1\n",
            {},
            "task.choices",
            "table.column_unknown",
            {"found": "z", "hint": '; did you mean "zz"?'},
        ),
        (
            "q,x,y,z,anser\na,b,c,d,1\n",
            {},
            "task.label",
            "table.column_unknown",
            {"found": "answer", "hint": '; did you mean "anser"?'},
        ),
        (
            "a,b,c,d,1\na,b\n",
            {"header": False},
            ROW,
            "table.fields",
            {"found": 2, "allowed": 5, "like": "the first line"},
        ),
    ],
)
def test_mistakes_are_named(
    tokenizer: Tokenizer,
    tmp_path: Path,
    rows: str,
    changes: dict[str, Any],
    place: str,
    key: str,
    values: dict[str, Any],
) -> None:
    columns = THREE
    if changes.get("header") is False:
        columns = {"text": "0", "choices": ("1", "2", "3"), "label": "4"}
        changes = {**changes, "label_is": ("1", "2", "3")}
    place = place if place.startswith("task.") else f"{tmp_path}/file.csv{place}"
    with refuses(key, place=place, **values):
        open_file(tokenizer, tmp_path, rows, **columns, **changes)


def test_a_number_is_the_name_of_a_choice_if_all_names_are_numbers(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    choices = {"text": ["saw", "dog", "in"], "label": ["1", "2", "3"]}
    settings = {"text": "q", "choices": ("choices",), "label": "answer", "name": "file.jsonl"}

    def open_labels(*labels: int) -> Family:
        rows = [{"q": "the", "choices": choices, "answer": label} for label in labels]
        content = "".join(f"{json.dumps(row)}\n" for row in rows)
        return open_file(tokenizer, tmp_path, content, **settings)

    train = open_labels(3, 1).splits["train"]
    assert [train.row(at).targets["label"] for at in (0, 1)] == [2, 0]
    with refuses("label.unknown", found="0"):
        open_labels(1, 0)


def test_questions_may_differ_in_their_number_of_choices(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    questions = [
        ({"text": ["saw", "dogs", "in"], "label": ["A", "B", "C"]}, "C"),
        ({"text": ["saw", "dog", "in", "mill"], "label": ["1", "2", "3", "4"]}, "4"),
    ]
    rows = [{"q": "the", "c": choices, "y": label} for choices, label in questions]
    content = "".join(f"{json.dumps(row)}\n" for row in rows)
    family = open_file(tokenizer, tmp_path, content, name="arc.jsonl", **LISTS)
    split = family.splits["train"]
    first, second = split.row(0), split.row(1)
    assert [len(ids) for ids in first.sequences] == [5, 6, 5, 0]
    assert [len(ids) for ids in second.sequences] == [5] * 4
    assert (list(first.seconds), split.lengths.tolist()) == ([3, 3, 3, 0], [6, 5])
    assert (first.targets, second.targets) == ({"label": 2}, {"label": 3})
    found, _ = predict(split, [[0, 0, np.log(2), -1e9], [0, 0, 0, 0]])
    assert found["probabilities"] == pytest.approx([0.25, 0.25, 0.5])
    assert f"{tmp_path}/arc.jsonl: questions have 3 to 4 choices" in family.notes
    with refuses("label.unknown", found="D", allowed=["A", "B", "C"]):
        rows = [{**row, "c": row["c"]["text"], "y": "D"} for row in rows]
        content = "".join(f"{json.dumps(row)}\n" for row in rows)
        names = ("A", "B", "C", "D")
        open_file(tokenizer, tmp_path, content, name="arc.jsonl", **LISTS, label_is=names)


@pytest.mark.parametrize(
    ("labels", "on_error"),
    [((1, 2), "stop"), ((1, 1), "stop"), ((1, 2), "skip"), ((2, 3, 1), "skip")],
)
def test_labels_without_0_need_a_setting(
    tokenizer: Tokenizer, tmp_path: Path, labels: tuple[int, ...], on_error: str
) -> None:
    rows = "".join(f"the,dog,river,mill,{label}\n" for label in labels)
    text = f"{HEADER}\n{rows}"

    def targets(content: str, **settings: Any) -> list[Any]:
        family = open_file(tokenizer, tmp_path, content, **THREE, **settings)
        split = family.splits["train"]
        return [split.row(at).targets["label"] for at in range(split.examples)]

    zero, one = '["0", "1", "2"]', '["1", "2", "3"]'
    with refuses("choice.first_number", place="task.label", zero=zero, one=one):
        targets(text, on_error=on_error)
    assert targets(text, label_is=("1", "2", "3")) == [label - 1 for label in labels]
    counted = [label for label in labels if label < 3]
    assert targets(text, label_is=("0", "1", "2"), on_error="skip") == counted
    assert targets(f"{text}the,dog,river,mill,0\n", on_error="skip") == [*counted, 0]


def test_a_dev_set_without_0_is_noted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text(f"{HEADER}\nthe,dog,river,mill,0\n")
    dev.write_text(f"{HEADER}\nthe,dog,river,mill,1\n")
    section = MultipleChoiceSection(train=str(train), dev=str(dev), **THREE)
    request = DataRequest(tokenizer, max_length=32, seed=0, roles=("train", "dev"))
    assert section.open(request).notes == ()
    (note,) = section.open(request._replace(roles=("dev",))).notes
    assert '["1", "2", "3"]' in note
