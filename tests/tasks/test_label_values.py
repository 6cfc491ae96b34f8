"""Labels mean the same in every format and in every role."""

import csv
import datetime
import decimal
import functools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.tasks.family import Family
from bert_jax.tasks.table import TableSection
from tests.project import refuses
from tests.tasks.sequences import labels_of, opening

opened = functools.cache(opening)
FORMATS = ("csv", "tsv", "jsonl", "parquet")


def write(directory: Path, role: str, suffix: str, labels: list[Any]) -> str:
    """Writes a table as `csv`, `json` and pyarrow write its labels."""
    path = directory / f"{role}.{suffix}"
    texts = [f"w{number}" for number in range(len(labels))]
    if suffix == "parquet":
        # Arrow has one type per column.
        if len({type(label) for label in labels if label is not None}) > 1:
            labels = [None if label is None else str(label) for label in labels]
        pq.write_table(pa.table({"text": texts, "label": labels}), path)
    elif suffix == "jsonl":
        lines = (
            json.dumps({"text": text, "label": label}, default=str)
            for text, label in zip(texts, labels, strict=True)
        )
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter="\t" if suffix == "tsv" else ",")
            table.writerows([("text", "label"), *zip(texts, labels, strict=True)])
    return str(path)


def open_files(directory: Path, *roles: str, **changes: Any) -> Family:
    values = {"dev": "unread.csv", "text": "text", "label": "label", **changes}
    request = opened(directory)._replace(roles=roles)
    return TableSection.model_validate(values).open(request)


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"],
        [0, 1],
        [0.0, 1.0],
        ["0", "1.0"],
        ["-1", "1"],
        [decimal.Decimal("0"), decimal.Decimal("1.0")],
        [1, 10**17],
        [False, True],
        ["False", "True"],
        ["FALSE", "TRUE"],
        ["no ", " yes"],
        ["\u00a0no", "yes\u3000"],
        ["2026-01-31", "2026-02-01"],
        ["No", "nan"],
        ["None", "Some"],
        ["[CLS]", "[SEP]"],
        ["(0, 18]", "(18, 99]"],
        ["None", "nan"],
    ],
    ids=str,
)
def test_a_label_is_the_same_in_every_format_and_role(tmp_path: Path, labels: list[Any]) -> None:
    rows = [labels[0], labels[1], labels[0]]
    names = set()
    for train in FORMATS:
        files = {"train": write(tmp_path, "train", train, rows)}
        for other in FORMATS:
            files |= {role: write(tmp_path, role, other, rows) for role in ("dev", "test")}
            family = open_files(tmp_path, "train", "dev", "test", problem="single_label", **files)
            names.add(tuple(name.lower() for name in family.heads.labels))
            for role in files:
                assert labels_of(family.splits[role]) == [0, 1, 0], (role, train, other)
    assert len(names) == 1


@pytest.mark.parametrize("missing", [None, "", "   ", "\u00a0", math.nan], ids=repr)
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_missing_label_is_refused_but_in_test_sets(
    tmp_path: Path, suffix: str, missing: Any
) -> None:
    known = [1.0, 0.0] if isinstance(missing, float) else ["b", "a"]
    # pandas writes NaN as nothing in a CSV, and as null in JSON lines.
    plain = None if isinstance(missing, float) and suffix != "parquet" else missing
    whole = write(tmp_path, "whole", suffix, known)
    rows = write(tmp_path, "rows", suffix, [*known, plain])
    for role, files in {"train": {"train": rows}, "dev": {"train": whole, "dev": rows}}.items():
        with refuses("label.missing"):
            open_files(tmp_path, role, **files)
    family = open_files(tmp_path, "test", train=whole, test=rows)
    assert labels_of(family.splits["test"]) == [1, 0, None]


@pytest.mark.parametrize("text", ["nan", "NaN", "None", "NULL", "<NA>", "N/A", "-", "?", r"\N"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_text_for_a_missing_label_is_never_read_silently(
    tmp_path: Path, suffix: str, text: str
) -> None:
    whole, rows = (
        write(tmp_path, name, suffix, labels)
        for name, labels in (("whole", ["b", "a"]), ("rows", ["b", "a", text]))
    )
    family = open_files(tmp_path, "train", train=rows)
    assert text in family.heads.labels
    assert any(note.startswith(rows) and note.endswith(f": {text}") for note in family.notes)
    with refuses("label.unknown", found=text) as error:
        open_files(tmp_path, "dev", train=whole, dev=rows)
    assert "missing label" in str(error.value)
    family = open_files(tmp_path, "test", train=whole, test=rows)
    assert labels_of(family.splits["test"]) == [1, 0, None]
    assert any(note.startswith(f"{rows}: 1 labels are {text}") for note in family.notes)
    # A label of the model stays.
    family = open_files(tmp_path, "test", train=rows, test=rows)
    assert None not in labels_of(family.splits["test"])
    numbers = write(tmp_path, "numbers", suffix, ["0.5", "1.5", text])
    scale = write(tmp_path, "scale", suffix, ["0.5", "1.5"])
    with refuses("label.not_a_number", found=text):
        open_files(tmp_path, "train", train=numbers)
    family = open_files(tmp_path, "test", train=scale, test=numbers, problem="regression")
    assert labels_of(family.splits["test"]) == [0.5, 1.5, None]


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("['a', 'c']", "auto"),
        ('["a"]', "auto"),
        ("[0 2]", "auto"),
        ("[]", "auto"),
        ("[a, c]", "auto"),
        ("('a', 'c')", "auto"),
        ("{'a'}", "auto"),
        ("array([0, 2])", "single_label"),
        ("{'label': 'a'}", "single_label"),
        ("['a', 'c']", "multi_label"),
    ],
)
@pytest.mark.parametrize("suffix", FORMATS)
def test_a_list_written_as_text_is_not_a_label(
    tmp_path: Path, suffix: str, cell: str, problem: str
) -> None:
    whole = write(tmp_path, "whole", suffix, ["a", "c"])
    for rows in ([cell, cell], ["a", cell, "c"]):
        path = write(tmp_path, "rows", suffix, rows)
        for role, files in {
            "train": {"train": path},
            "dev": {"train": whole, "dev": path},
            "test": {"train": whole, "test": path},
        }.items():
            with refuses("label.list_text", found=cell):
                open_files(tmp_path, role, problem=problem, label_separator=",", **files)


@pytest.mark.parametrize("label", [b"a", datetime.date(2026, 1, 31), {"a": 1}], ids=str)
def test_a_value_that_is_no_label_is_named(tmp_path: Path, label: Any) -> None:
    path = write(tmp_path, "train", "parquet", [label, label])
    place = f'{path}: row 1: column "label"'
    with refuses("label.kind", place=place, found=label):
        open_files(tmp_path, "train", train=path)


def test_fractions_of_decimals_are_a_regression(tmp_path: Path) -> None:
    labels = [decimal.Decimal("0.5"), decimal.Decimal("2.0"), decimal.Decimal("1.25")]
    path = write(tmp_path, "train", "parquet", labels)
    family = open_files(tmp_path, "train", train=path)
    assert family.heads.problem == "regression"
    assert labels_of(family.splits["train"]) == [0.5, 2.0, 1.25]


@pytest.mark.parametrize("label", [[1.0, 0.0, 1.0], [1, 0, 1], [True, False, True]])
def test_vectors_of_classes_are_no_names(label: list[Any], tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label}, {"text": "b", "label": [each < 1 for each in label]}]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows * 8))
    section = TableSection.model_validate({"train": str(path), "text": "text", "label": "label"})
    with refuses("label.vectors", found=label, example=["class0", "class2"]):
        section.open(opening(tmp_path, "train"))


@pytest.mark.parametrize(
    ("label", "separator"),
    [("joy,fear", ","), ("joy; fear", ";"), ("joy|fear|joy", "|"), ("joy fear", " ")],
)
@pytest.mark.parametrize("form", FORMATS)
def test_a_label_of_several_labels_needs_a_setting(
    form: str, label: str, separator: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "train", form, ["joy", label, "fear"])
    with refuses("label.several", found=label, separator=separator):
        open_files(tmp_path, "train", train=path)
    family = open_files(tmp_path, "train", train=path, problem="single_label")
    assert label in family.heads.labels
    settings = {"problem": "multi_label", "label_separator": separator}
    assert open_files(tmp_path, "train", train=path, **settings).heads.labels == ("fear", "joy")
    family = open_files(tmp_path, "train", train=path, **settings | {"label_separator": "+"})
    assert any(note.endswith(f"task.label_separator: {label}") for note in family.notes)
    # The parts of other names are no labels.
    path = write(tmp_path, "train", form, ["joy", label, "anger"])
    assert label in open_files(tmp_path, "train", train=path).heads.labels


ALIKE = [
    ["yes", "Yes"],
    ["yes", "yes\u200b"],
    ["caf\u00e9", "cafe\u0301"],
    ["5", "05"],
    ["+1", "1"],
]


@pytest.mark.parametrize("labels", ALIKE)
def test_labels_that_look_alike_are_noted(labels: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, "train", "csv", [*labels, "6"])
    family = open_files(tmp_path, "train", train=path)
    assert len(family.heads.labels) == 3
    (note,) = (note for note in family.notes if "look alike" in note)
    assert ("\\u" in note) == (not labels[-1].isascii())


@pytest.mark.parametrize("label", [{"a": 1}, ["a"]])
def test_a_list_of_objects_is_no_list_of_labels(label: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "train", "jsonl", [[label], [label]])
    with refuses("label.kind", found=label):
        open_files(tmp_path, "train", train=path)


@pytest.mark.parametrize("labels", [[True, False, 1, 0], [True, 0], ["1", "False"]])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_truth_values_as_words_and_as_numbers_are_refused(
    form: str, labels: list[Any], tmp_path: Path
) -> None:
    path = write(tmp_path, "train", form, labels * 4)
    place = f'{path}: line {1 + (form == "csv")}: column "label"'
    spelled = [str(each) if form == "csv" else json.dumps(each).strip('"') for each in labels]
    with refuses("label.mixed_truth", place=place, found=sorted({*spelled})):
        open_files(tmp_path, "train", train=path)


def test_decimal_commas_are_no_names(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text;label\n" + "".join(f"a{at};{at},5\n" for at in range(8)))
    names = {"text": "text", "label": "label", "delimiter": "semicolon"}
    section = TableSection.model_validate({"train": str(path), **names})
    with refuses("label.decimal_comma", found="0,5"):
        section.open(opening(tmp_path, "train"))
    named = TableSection.model_validate({"train": str(path), **names, "problem": "single_label"})
    with refuses("table.no_dev_classes"):
        named.open(opening(tmp_path, "train"))
