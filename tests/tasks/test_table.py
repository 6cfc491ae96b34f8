"""The user's tables: problems, labels and errors."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config import parse_config
from bert_jax.tasks.family import Family
from bert_jax.tasks.sequence import TextExample
from bert_jax.tasks.table import TableSection, hold_out
from bert_jax.verbs.finetune import with_tables
from tests.project import refuses
from tests.tasks.sequences import labels_of, opening, predict, write_lines


def table(directory: Path, *roles: str, **changes: Any) -> Family:
    """Opens train.csv, and any other given files, with columns `text` and `label`."""
    options = {key: changes.pop(key) for key in ("labels", "input", "seed") if key in changes}
    values = {"train": str(directory / "train.csv"), "text": "text", "label": "label", **changes}
    return TableSection.model_validate(values).open(opening(directory, *roles, **options))


def csv_of(path: Path, labels: list[str]) -> Path:
    return write_lines(path, ["text,label", *(f"w{n},{label}" for n, label in enumerate(labels))])


def jsonl_of(path: Path, labels: list[Any]) -> Path:
    rows = [{"text": f"w{n}", "label": label} for n, label in enumerate(labels)]
    return write_lines(path, list(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("labels", "problem", "names", "targets"),
    [
        (["good", "bad", "good"], "single_label", ("bad", "good"), [1, 0, 1]),
        # Integers are classes, and 10 sorts after 9.
        (["10", "9", "10"], "single_label", ("9", "10"), [1, 0, 1]),
        (["1.5", "2", "-3e1"], "regression", ("label",), [1.5, 2.0, -30.0]),
        (["1.5", "x", "y"], "single_label", ("1.5", "x", "y"), [0, 1, 2]),
        (["1_0.5", "2.5"], "single_label", ("1_0.5", "2.5"), [0, 1]),
        # Python refuses to convert this many digits to an integer.
        (["9", "8" * 5_000], "single_label", ("8" * 5_000, "9"), [1, 0]),
    ],
    ids=("names", "whole numbers", "numbers", "mixed", "underscores", "digits"),
)
def test_the_problem_is_inferred_from_training_labels(
    tmp_path: Path, labels: list[str], problem: str, names: tuple[str, ...], targets: list[float]
) -> None:
    csv_of(tmp_path / "train.csv", labels)
    csv_of(tmp_path / "dev.csv", labels[:1])
    family = table(tmp_path, dev=str(tmp_path / "dev.csv"))
    assert (family.heads.problem, family.heads.labels) == (problem, names)
    assert labels_of(family.splits["train"]) == targets
    assert labels_of(family.splits["dev"]) == targets[:1]
    assert family.notes[0].startswith(f"problem: {problem}, since labels are ")


@pytest.mark.parametrize("cell", ["n/a", "nan", '"2,5"'])
def test_a_stray_cell_is_a_class_only_if_configured(tmp_path: Path, cell: str) -> None:
    found = [str(n / 4) for n in range(8)]
    csv_of(tmp_path / "train.csv", [*found, cell, "bad"])
    spelled = cell.strip('"')
    place = f'{tmp_path}/train.csv: line 10: column "label"'
    with refuses("label.not_a_number", place=place, found=spelled) as error:
        table(tmp_path, "train", dev="unread.csv")
    assert "8 of 10" in str(error.value)
    asked = table(tmp_path, "train", dev="unread.csv", problem="single_label")
    # Whole numbers have no fraction, as in JSON and Parquet.
    assert set(asked.heads.labels) == {*(f"{n / 4:g}" for n in range(8)), spelled, "bad"}


def test_lists_are_multiple_labels(tmp_path: Path) -> None:
    path = jsonl_of(tmp_path / "train.jsonl", [["b", "a"], [], ["c", "c"], "a|c"])
    family = table(tmp_path, "train", train=str(path), dev=str(path))
    assert family.heads.problem == "multi_label"
    assert family.heads.labels == ("a", "b", "c")
    expected = [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1]]
    assert labels_of(family.splits["train"]) == expected
    pq.write_table(
        pa.table({"text": ["w1", "w2"], "label": [["a", "b"], ["b"]]}), tmp_path / "t.parquet"
    )
    family = table(tmp_path, "train", train=str(tmp_path / "t.parquet"), dev="unread.csv")
    assert labels_of(family.splits["train"]) == [[1, 1], [0, 1]]


def test_separators_divide_multiple_labels(tmp_path: Path) -> None:
    csv_of(tmp_path / "train.csv", ["a|b", "", " b | c ", "c"])
    family = table(tmp_path, "train", problem="multi_label", dev="unread.csv")
    assert labels_of(family.splits["train"]) == [[1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 0, 1]]
    csv_of(tmp_path / "train.csv", ["a;b", "b"])
    family = table(tmp_path, "train", problem="multi_label", label_separator=";", dev="unread.csv")
    assert family.heads.labels == ("a", "b")
    # If all cells are empty, the split is unlabelled.
    csv_of(tmp_path / "test.csv", ["", ""])
    family = table(
        tmp_path,
        "test",
        problem="multi_label",
        test=str(tmp_path / "test.csv"),
        labels=("a", "b"),
    )
    assert labels_of(family.splits["test"]) == [None, None]


@pytest.mark.parametrize("train", [["0", "1"], ["0.0", "1.0"], [0, 1], [0.0, 1.0], ["0", "1.0", 1]])
@pytest.mark.parametrize("dev", [["0", "1"], ["0.0", "1.0"], [0, 1], [0.0, 1.0]])
def test_whole_numbers_are_one_label_in_any_spelling(
    tmp_path: Path, train: list[Any], dev: list[Any]
) -> None:
    path = jsonl_of(tmp_path / "train.jsonl", train)
    dev_path = csv_of(tmp_path / "dev.csv", [str(label) for label in dev])
    family = table(tmp_path, train=str(path), dev=str(dev_path))
    assert family.heads.labels == ("0", "1")
    assert labels_of(family.splits["dev"]) == [0, 1]
    # Models trained before keep their spelling.
    old = table(tmp_path, "dev", train=str(path), dev=str(dev_path), labels=("0.0", "1.0"))
    assert labels_of(old.splits["dev"]) == [0, 1]


def test_truth_values_of_csv_and_json_are_one_label(tmp_path: Path) -> None:
    csv_of(tmp_path / "train.csv", ["True", "False"])
    dev = jsonl_of(tmp_path / "dev.jsonl", [True, False])
    family = table(tmp_path, dev=str(dev))
    assert family.heads.labels == ("False", "True")
    assert labels_of(family.splits["dev"]) == [1, 0]


def test_blanks_around_labels_are_removed_with_a_note(tmp_path: Path) -> None:
    train = csv_of(tmp_path / "train.csv", ["pos", "neg ", " pos", "neg", "Neg"])
    family = table(tmp_path, "train", dev="unread.csv")
    assert family.heads.labels == ("Neg", "neg", "pos")
    (blanks,) = (note for note in family.notes if "had blanks" in note)
    assert blanks.startswith(f"{train}: 2 ")
    assert "'neg '" in blanks
    assert any(note.endswith("Neg, neg") for note in family.notes)
    csv_of(tmp_path / "train.csv", ["pos", "neg", "  "])
    with refuses("label.missing", allowed=["neg", "pos"]):
        table(tmp_path, "train", dev="unread.csv")


def test_minus_one_is_a_missing_label_in_test_sets(tmp_path: Path) -> None:
    csv_of(tmp_path / "train.csv", ["0", "1"])
    test = csv_of(tmp_path / "test.csv", ["-1", "1", "-1.0"])
    family = table(tmp_path, "train", "test", dev="unread.csv", test=str(test))
    assert labels_of(family.splits["test"]) == [None, 1, None]
    assert any(note.startswith(f"{test}: 2 labels are -1") for note in family.notes)
    with refuses("label.unknown", found="-1", allowed=["0", "1"]) as error:
        table(tmp_path, dev=str(test))
    assert "missing" in str(error.value)
    # In a regression, only a file of nothing but -1 has no labels.
    csv_of(tmp_path / "train.csv", ["0.5", "-1"])
    family = table(tmp_path, "train", "test", dev="unread.csv", test=str(test))
    assert labels_of(family.splits["test"]) == [-1, 1, -1]
    csv_of(tmp_path / "test.csv", ["-1.0", "-1.0"])
    family = table(tmp_path, "train", "test", dev="unread.csv", test=str(test))
    assert labels_of(family.splits["test"]) == [None, None]
    # A training set may have the class -1.
    csv_of(tmp_path / "train.csv", ["-1", "0", "1"])
    family = table(tmp_path, "train", "test", dev="unread.csv", test=str(test))
    assert labels_of(family.splits["test"]) == [0, 0]
    assert any("-1 is a label" in note for note in family.notes)


COLUMNS = {"kind": "table", "text": "text", "label": "label"}
CLASSES = {"names": ["neg", "pos"], "_type": "ClassLabel"}


def test_parquet_of_datasets_has_the_names_of_classes(tmp_path: Path) -> None:
    classes = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": classes})

    def write(name: str, labels: list[int]) -> Path:
        texts = [f"w{n}" for n in range(len(labels))]
        rows = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)
        rows.to_parquet(tmp_path / name)
        return tmp_path / name

    train, test = write("train.parquet", [1, 0, 1]), write("test.parquet", [-1, -1])
    family = table(tmp_path, "train", "test", train=str(train), dev="unread.csv", test=str(test))
    assert family.heads.labels == ("neg", "pos")
    assert labels_of(family.splits["train"]) == [1, 0, 1]
    assert labels_of(family.splits["test"]) == [None, None]
    held = datasets.Dataset.from_dict({"text": ["w1", "w2"], "label": [1, 0]}, features=features)
    config = {"run_dir": str(tmp_path / "run"), "finetune": {"init_from": "x", "task": COLUMNS}}
    tables: list[Any] = [held, held.data.table]
    for rows in tables:
        with_tables(parse_config(config, source="a.yaml"), {"train": rows})
        written = tmp_path / "run" / "data" / "train.jsonl"
        family = table(tmp_path, "train", train=str(written), dev="unread.csv")
        assert (family.heads.labels, labels_of(family.splits["train"])) == (("neg", "pos"), [1, 0])
    lists = features | {"label": datasets.Sequence(classes)}
    rows = datasets.Dataset.from_dict(
        {"text": ["w1", "w2"], "label": [[0, 1], []]}, features=datasets.Features(lists)
    )
    rows.to_parquet(train)
    family = table(tmp_path, "train", train=str(train), dev="unread.csv")
    assert labels_of(family.splits["train"]) == [[1, 1], [0, 0]]
    metadata = {b"huggingface": json.dumps({"info": {"features": {"label": CLASSES}}})}
    columns = pa.table({"text": ["w1", "w2"], "label": [0, 2]}).replace_schema_metadata(metadata)
    pq.write_table(columns, train)
    place = f'{train}: row 2: column "label"'
    with refuses("table.class_number", place=place, found=2, last=1):
        table(tmp_path, "train", train=str(train), dev="unread.csv")


def test_malformed_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    lines = ["text,label", "w1,a", "w2", "w3,b", "w4,", "w5,a", '"w6" w7,a', "w8,b"]
    path = write_lines(tmp_path / "train.csv", lines)
    dev = csv_of(tmp_path / "dev.csv", ["a", "zzz", "b"])
    with refuses("table.fields", place=f"{path}: line 3") as error:
        table(tmp_path, dev=str(dev))
    assert "finetune.task.on_error=skip" in str(error.value)
    family = table(tmp_path, dev=str(dev), on_error="skip")
    # Skipped rows do not shift the ids.
    assert (ids(family, "train"), ids(family, "dev")) == ([0, 2, 4, 6], [0, 2])
    train_note, dev_note = family.notes[1:]
    assert train_note.startswith(f"{path}: skipped 3 of 7 rows: line 3: ")
    assert "; line 7: " in train_note
    assert '; line 5: column "label": ' in train_note
    assert dev_note.startswith(f'{dev}: skipped 1 of 3 rows: line 3: column "label": ')
    assert '"zzz"' in dev_note
    numbers = csv_of(tmp_path / "numbers.csv", ["1.5", "n/a", "2", "2.5"])
    family = table(tmp_path, "train", train=str(numbers), dev="unread.csv", on_error="skip")
    assert labels_of(family.splits["train"]) == [1.5, 2, 2.5]
    mixed = jsonl_of(tmp_path / "t.jsonl", ["a", {"b": 1}, "b"])
    family = table(tmp_path, "train", train=str(mixed), dev="unread.csv", on_error="skip")
    assert labels_of(family.splits["train"]) == [0, 1]
    write_lines(dev, ["text,label", "w1", "w2"])
    with refuses("task.rows_skipped", place=dev) as error:
        table(tmp_path, dev=str(dev), on_error="skip")
    assert "2 of 2" in str(error.value)


def test_a_wrong_delimiter_and_a_missing_header_are_named(tmp_path: Path) -> None:
    for lines in (["text;label", "w1;a", "w2;b"], ["text;label", "w1, w3;a"], ['"text";"label"']):
        write_lines(tmp_path / "train.csv", lines)
        with refuses("table.delimiter", found='";"', allowed='","') as error:
            table(tmp_path, "train", dev="unread.csv")
        assert "finetune.task.delimiter=semicolon" in str(error.value)
    write_lines(tmp_path / "train.csv", ["text;label", '"w1; w3";a', "w2, w4;b"])
    family = table(tmp_path, "train", dev="unread.csv", delimiter="semicolon")
    assert labels_of(family.splits["train"]) == [0, 1]
    commas = write_lines(tmp_path / "t.tsv", ["text,label", "w1,a"])
    with refuses("table.delimiter", place=commas, found='","', allowed="a tab") as error:
        table(tmp_path, "train", train=str(commas), dev="unread.csv")
    assert "finetune.task.delimiter=comma" in str(error.value)
    write_lines(tmp_path / "train.csv", ["a fine book,5", "a dull book,1"])
    columns = ["a fine book", "5"]
    with refuses("table.column_unknown", place="task.text", allowed=columns) as error:
        table(tmp_path, "train", dev="unread.csv")
    assert "if this line is a row" in str(error.value)


def test_scores_and_the_ranking_score(tmp_path: Path) -> None:
    def keys(labels: list[str], **changes: Any) -> list[str]:
        path = csv_of(tmp_path / "train.csv", labels)
        family = table(tmp_path, "train", dev=str(path), **changes)
        logits = [[0.0] * len(family.heads.labels)] * len(labels)
        figures = family.score(predict(family.splits["train"], logits))
        assert family.best_metric == next(iter(figures))
        return list(figures)

    assert keys(["a", "b"]) == ["accuracy", "macro_f1", "matthews"]
    assert keys(["a", "b", "c"]) == ["accuracy", "macro_f1"]
    assert keys(["a", "b", "c"], class_weights="balanced") == ["macro_f1", "accuracy"]
    assert keys(["1.5", "2"]) == ["spearman", "pearson", "mse"]
    several = keys(["a|b", "b"], problem="multi_label")
    assert several == ["micro_f1", "macro_f1", "subset_accuracy"]


def test_class_weights(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "train.csv", ["a", "b", "a", "a"])

    def weights(*roles: str, **changes: Any) -> object:
        return table(tmp_path, *roles, dev=str(path), **changes).class_weights

    assert weights() is None
    assert weights(class_weights="balanced") == pytest.approx((4 / (2 * 3), 4 / (2 * 1)))
    assert weights(class_weights={"b": 3}) == (1.0, 3.0)
    assert weights("dev", class_weights="balanced") is None
    values = {"found": "bb", "allowed": ["a", "b"], "hint": '; did you mean "b"?'}
    with refuses("label.unknown", place="task.class_weights", **values):
        table(tmp_path, dev=str(path), class_weights={"bb": 2, "a": 1})
    several = csv_of(tmp_path / "train.csv", ["a|b", "", "b", "b"])
    made = table(
        tmp_path, dev=str(several), problem="multi_label", class_weights="balanced"
    ).class_weights
    assert made == pytest.approx((4 / (2 * 1), 4 / (2 * 3)))
    csv_of(tmp_path / "train.csv", ["1.5", "2"])
    with refuses("label.weights_in_regression"):
        table(tmp_path, dev=str(path), class_weights="balanced", problem="regression")


GOOD = ["text,label", "w1,a", "w2,b"]
NUMBERS = ["text,label", "w1,1.5"]
COLUMN = ': column "label"'
NUMBER = f": line 3{COLUMN}"
REGRESSION = {"problem": "regression"}


@pytest.mark.parametrize(
    ("lines", "changes", "place", "key", "values"),
    [
        (
            GOOD,
            {"label": "lable"},
            "task.label",
            "table.column_unknown",
            {"found": "lable", "allowed": ["text", "label"], "hint": '; did you mean "label"?'},
        ),
        (GOOD, {"id": "key"}, "task.id", "table.column_unknown", {"found": "key"}),
        ([*GOOD, "w3,"], {}, f": line 4{COLUMN}", "label.missing", {"allowed": ["a", "b"]}),
        (GOOD[:2], {}, COLUMN, "label.too_few", {"found": ["a"]}),
        (["text,label", "w1,"], {}, COLUMN, "label.too_few", {"found": "no label"}),
        (GOOD[:1], {}, "", "task.no_rows", {}),
        ([*GOOD, "w3"], {}, ": line 4", "table.fields", {"found": 1, "allowed": 2}),
        ([*NUMBERS, "w,x"], REGRESSION, NUMBER, "label.not_a_number", {"found": "x"}),
        ([*NUMBERS, "w,inf"], REGRESSION, NUMBER, "label.not_a_number", {"found": "inf"}),
        ([*NUMBERS, "w,"], {}, NUMBER, "label.missing", {"allowed": "a number"}),
    ],
)
def test_errors_in_a_training_table_are_named(
    tmp_path: Path,
    lines: list[str],
    changes: dict[str, Any],
    place: str,
    key: str,
    values: dict[str, Any],
) -> None:
    path = write_lines(tmp_path / "train.csv", lines)
    place = place if place.startswith("task.") else f"{path}{place}"
    with refuses(key, place=place, **values):
        table(tmp_path, "train", dev="unread.csv", **changes)


def test_a_test_set_may_lack_labels(tmp_path: Path) -> None:
    csv_of(tmp_path / "train.csv", ["a", "b"])
    labels = ("a", "b")
    bare = write_lines(tmp_path / "bare.csv", ["text", "w1"])
    some = csv_of(tmp_path / "some.csv", ["b", ""])
    family = table(tmp_path, "test", "input", test=str(bare), input=some, labels=labels)
    assert labels_of(family.splits["test"]) == [None]
    assert labels_of(family.splits["input"]) == [1, None]
    assert family.score(predict(family.splits["test"], [[1, 0]])) == {}
    # Only labelled rows are scored.
    records = predict(family.splits["input"], [[0, 1], [0, 1]])
    assert family.score(records)["accuracy"] == 1.0
    with refuses("task.no_file", place="task.test"):
        table(tmp_path, "test", labels=labels)
    place = f'{some}: line 3: column "label"'
    with refuses("label.missing", place=place, allowed=["a", "b"]):
        table(tmp_path, "dev", dev=str(some))


def test_a_dev_set_is_split_off_and_reported(tmp_path: Path) -> None:
    labels = ["a"] * 30 + ["b"] * 10 + ["c"]
    csv_of(tmp_path / "train.csv", labels)
    family = table(tmp_path, seed=3)
    train, dev = family.splits["train"], family.splits["dev"]
    found = [
        [record["label"] for record in predict(split, [[0, 0, 0]] * split.examples)]
        for split in (train, dev)
    ]
    assert found == [["a"] * 27 + ["b"] * 9 + ["c"], ["a"] * 3 + ["b"]]
    assert f"{tmp_path}/train.csv with split_seed 3: 37 train and 4 dev" in family.notes[-1]
    # An evaluation opens only "dev", and holds out the same rows.
    alone = table(tmp_path, "dev", seed=3, labels=("a", "b", "c"))
    assert set(alone.splits) == {"dev"}
    assert ids(alone, "dev") == ids(family, "dev")
    assert ids(table(tmp_path, "dev", seed=4), "dev") != ids(family, "dev")
    csv_of(tmp_path / "train.csv", ["a", "b"])
    with refuses("table.no_dev_classes", classes=2, rows=2):
        table(tmp_path)


def test_an_impossible_dev_split_is_an_error(tmp_path: Path) -> None:
    path = csv_of(tmp_path / "train.csv", [str(n) for n in range(50)])
    with refuses("table.no_dev_classes", place=path, classes=50, rows=50) as error:
        table(tmp_path)
    assert "finetune.task.problem=regression" in str(error.value)
    assert table(tmp_path, problem="regression").splits["dev"].examples == 5
    assert table(tmp_path, "train", dev="unread.csv").heads.problem == "single_label"
    write_lines(path, ["text,label", *["w1,a", "w2,b"] * 20])
    with refuses("table.no_dev_classes", place=path, classes=2, rows=40) as error:
        table(tmp_path)
    assert "finetune.task.problem=regression" not in str(error.value)
    write_lines(path, ["text,label", "w1,1.5"])
    with refuses("table.no_dev_rows", place=path, rows=1):
        table(tmp_path)


def ids(family: Family, name: str) -> list[object]:
    split = family.splits[name]
    outputs = len(family.heads.labels)
    return [record["id"] for record in predict(split, [[0.0] * outputs] * split.examples)]


Row = tuple[int, str, str | None]
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abcdefgh"), st.none() | st.sampled_from("xyz")),
    max_size=40,
)


def examples_of(rows: list[Row]) -> list[TextExample]:
    return [
        TextExample(number, text, pair, label, number)
        for number, (label, text, pair) in enumerate(rows)
    ]


def contents(examples: list[TextExample]) -> Counter[Row]:
    return Counter((int(e.target or 0), e.text, e.pair) for e in examples)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(ROWS, st.floats(0.05, 0.9), st.randoms(use_true_random=False))
def test_held_out_rows_do_not_depend_on_order(
    rows: list[Row], fraction: float, shuffler: random.Random
) -> None:
    train, dev = hold_out(examples_of(rows), fraction=fraction, seed=5)
    other = rows.copy()
    shuffler.shuffle(other)
    other_train, other_dev = hold_out(examples_of(other), fraction=fraction, seed=5)
    assert contents(train) == contents(other_train)
    assert contents(dev) == contents(other_dev)


@settings(deadline=None, max_examples=100)
@given(ROWS, st.floats(0.05, 0.9))
def test_equal_examples_stay_in_one_part(rows: list[Row], fraction: float) -> None:
    train, dev = hold_out(examples_of(rows), fraction=fraction, seed=0)
    assert sorted(example.id for example in (*train, *dev)) == list(range(len(rows)))
    for part in (train, dev):
        assert [example.id for example in part] == sorted(example.id for example in part)
    assert not contents(train).keys() & contents(dev).keys()
    # Every label is in the training set. If a label has two different texts, it is also in dev.
    for label in {label for label, *_ in rows}:
        different = {(text, pair) for of, text, pair in rows if of == label}
        assert label in {example.target for example in train}
        assert (label in {example.target for example in dev}) == (len(different) > 1)
