"""GLUE tasks from original files, and submissions to the leaderboard."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bert_jax.tasks.family import Family
from bert_jax.tasks.glue.family import FILES, GlueSection, write_submission
from bert_jax.tasks.glue.files import TASKS
from tests.project import refuses
from tests.tasks.sequences import labels_of, opening, predict, write_lines

HEADER_MRPC = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
HEADER_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
NLI = "index\tsentence1\tsentence2\tlabel"
MNLI = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1"

# {task: (lines of train.tsv, labels)}.
TRAIN: dict[str, tuple[list[str], list[str | float]]] = {
    "cola": (["gj04\t1\t\tw1.", "gj04\t0\t*\tw2 w3."], ["acceptable", "unacceptable"]),
    "sst2": (["sentence\tlabel", "w1 \t1", 'w2 "w3\t0'], ["positive", "negative"]),
    "mrpc": (
        [HEADER_MRPC, "1\t7\t8\tw1\tw2", '0\t9\t10\t" w3\tw4'],
        ["equivalent", "not_equivalent"],
    ),
    "stsb": (
        [
            HEADER_STSB + "\tscore",
            "0" + "\tx" * 6 + "\tw1\tw2\t5.000",
            "1" + "\t" * 7 + "w\tw\t0.5",
        ],
        [5.0, 0.5],
    ),
    "qqp": (
        [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "4\t1\t2\tw1\tw2\t1",
            "5\t\t\tw\tw\t0",
        ],
        ["duplicate", "not_duplicate"],
    ),
    "mnli": (
        [
            MNLI + "\tgold_label",
            "0\ta\tb\tc\tw1\tw2\tneutral\tneutral",
            "1\t\t\t\tw\tw\t\tentailment",
        ],
        ["neutral", "entailment"],
    ),
    "qnli": (
        ["index\tquestion\tsentence\tlabel", "0\tw1\tw2\tnot_entailment", "1\tw\tw\tentailment"],
        ["not_entailment", "entailment"],
    ),
    "rte": (
        [NLI, "0\tw1\tw2\tnot_entailment", "1\tw\tw\tentailment"],
        ["not_entailment", "entailment"],
    ),
    "wnli": ([NLI, "0\tw1\tw2\t0", "1\tw\tw\t1"], ["not_entailment", "entailment"]),
}


FIGURES = {  # the first one ranks checkpoints
    "cola": ["matthews", "accuracy"],
    "mrpc": ["f1", "accuracy"],
    "qqp": ["f1", "accuracy"],
    "stsb": ["spearman", "pearson"],
    "mnli": ["accuracy", "matthews"],
}

LABEL = 'line 2: column "label"'


def glue(directory: Path, name: str, *roles: str, **changes: object) -> Family:
    """Opens a task whose files are in `directory`."""
    options = {key: changes.pop(key) for key in ("labels", "input", "max_length") if key in changes}
    section = GlueSection.model_validate({"name": name, "data": str(directory), **changes})
    return section.open(opening(directory, *roles, **options))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", TASKS)
def test_each_layout_is_read_with_named_labels(tmp_path: Path, name: str, end: str) -> None:
    lines, expected = TRAIN[name]
    write_lines(tmp_path / "train.tsv", lines, end=end)
    family = glue(tmp_path, name, "train")
    split = family.splits["train"]
    zeros = [[0.0] * len(family.heads.labels)] * 2
    records = predict(split, zeros)
    assert [record["label"] for record in records] == expected
    numbers = labels_of(split)
    if name == "stsb":
        assert numbers == expected
    else:
        assert [family.heads.labels[int(str(number))] for number in numbers] == expected
    assert records[0]["text"].rstrip(". ") == "w1"
    assert ("pair" in records[0]) == (name not in ("cola", "sst2"))
    assert records[0].get("pair", "w2") == "w2"
    assert family.heads.problem == ("regression" if name == "stsb" else "single_label")
    figures = list(family.score(records))
    assert figures == FIGURES.get(name, ["accuracy"])
    assert family.best_metric == figures[0]


def test_labels_have_the_customary_order() -> None:
    # Order in the GLUE datasets of Hugging Face and TensorFlow.
    assert {name: task.names for name, task in TASKS.items()} == {
        "cola": ("unacceptable", "acceptable"),
        "sst2": ("negative", "positive"),
        "mrpc": ("not_equivalent", "equivalent"),
        "stsb": ("similarity",),
        "qqp": ("not_duplicate", "duplicate"),
        "mnli": ("entailment", "neutral", "contradiction"),
        "qnli": ("entailment", "not_entailment"),
        "rte": ("entailment", "not_entailment"),
        "wnli": ("not_entailment", "entailment"),
    }


def test_a_models_own_order_of_labels_is_kept(tmp_path: Path) -> None:
    write_lines(tmp_path / "train.tsv", TRAIN["mnli"][0])
    order = ("contradiction", "entailment", "neutral")
    family = glue(tmp_path, "mnli", "train", labels=order)
    assert family.heads.labels == order
    assert labels_of(family.splits["train"]) == [2, 1]
    others = ("LABEL_0", "LABEL_1", "LABEL_2")
    with refuses("glue.other_labels", place="task.name", found="mnli", allowed=[*others]):
        glue(tmp_path, "mnli", "train", labels=others)


def test_f1_scores_the_positive_label_in_any_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "dev.tsv", [HEADER_MRPC, *["1\t1\t2\tw1\tw2"] * 3, "0\t1\t2\tw1\tw2"])
    order = ("equivalent", "not_equivalent")
    family = glue(tmp_path, "mrpc", "dev", labels=order)
    records = predict(family.splits["dev"], [[1, 0], [1, 0], [0, 1], [1, 0]])
    # tp 2, fp 1, fn 1
    assert family.score(records) == pytest.approx({"f1": 4 / 6, "accuracy": 2 / 4})


def test_mnli_has_two_dev_and_test_sets_and_diagnostics(tmp_path: Path) -> None:
    lines = TRAIN["mnli"][0]
    data = tmp_path / "glue" / "MNLI"
    for name in ("dev_matched", "dev_mismatched"):
        write_lines(data / f"{name}.tsv", lines)
    for name in ("test_matched", "test_mismatched"):
        write_lines(data / f"{name}.tsv", [MNLI, "0\ta\tb\tc\tw1\tw2\t"])
    assert set(glue(data, "mnli", "dev").splits) == {"dev_matched", "dev_mismatched"}
    tests = {"test_matched", "test_mismatched"}
    assert set(glue(data, "mnli", "test").splits) == tests
    # The directory in the downloaded archive, and two other accepted directories.
    for place in (tmp_path / "glue" / "diagnostic", tmp_path / "glue", data):
        path = write_lines(place / "diagnostic.tsv", ["index\tsentence1\tsentence2", "0\tw1\tw2"])
        family = glue(data, "mnli", "test")
        assert set(family.splits) == {*tests, "diagnostic"}
        assert labels_of(family.splits["diagnostic"]) == [None]
        path.unlink()
    columns = "Lexical Semantics\tPremise\tHypothesis\tLabel"
    write_lines(data / "diagnostic.tsv", [columns, "x\tw1\tw2\tneutral", "x\tw1\tw2\tentailment"])
    family = glue(data, "mnli", "test")
    records = predict(family.splits["diagnostic"], [[0, 1, 0], [1, 0, 0]])
    assert family.score(records)["matthews"] == 1.0
    # `data` may be the directory of the unpacked archive.
    assert set(glue(tmp_path / "glue", "mnli", "dev").splits) == {"dev_matched", "dev_mismatched"}


def test_broken_lines_of_qqp_are_skipped_and_counted(tmp_path: Path) -> None:
    header, *rest = TRAIN["qqp"][0]
    write_lines(tmp_path / "train.tsv", [header, rest[0], "6\t1\t2\tw1 w2", rest[1], "w3"])
    family = glue(tmp_path, "qqp", "train")
    assert family.splits["train"].examples == 2
    (note,) = family.notes
    assert note.startswith("train: 2 lines ")
    assert note.endswith("(line 3, 5)")
    write_lines(tmp_path / "train.tsv", [header, rest[0] + "\tw"])
    place = f"{tmp_path}/train.tsv: line 2"
    with refuses("table.fields", place=place, found=7, allowed=6):
        glue(tmp_path, "qqp", "train")


def test_extra_fields_of_stsb_are_ignored_and_counted(tmp_path: Path) -> None:
    header, first, second = TRAIN["stsb"][0]
    write_lines(tmp_path / "train.tsv", [header, first + "\tx\ty", second])
    family = glue(tmp_path, "stsb", "train")
    assert labels_of(family.splits["train"]) == [5.0, 0.5]
    assert family.notes[0].startswith("train: 1 lines ")


@pytest.mark.parametrize(
    ("name", "lines", "key", "place", "values"),
    [
        ("cola", ["a\t1\t\tw1", "a\t1\tw1"], "table.fields", "line 2", {"found": 3, "allowed": 4}),
        ("rte", [NLI, "0\tw1\tw2\tentailmnt"], "label.unknown", LABEL, {"found": "entailmnt"}),
        (
            "sst2",
            ["sentence\tlabel", "w1\t2"],
            "label.unknown",
            LABEL,
            {"found": "2", "allowed": ["0", "1"]},
        ),
        (
            "sst2",
            ["sentence\tlabel", "w1\t"],
            "label.missing",
            LABEL,
            {"allowed": ["negative", "positive"]},
        ),
        ("sst2", ["sentence", "w1"], "table.column_unknown", "task.label", {"found": "label"}),
        (
            "stsb",
            [HEADER_STSB + "\tscore", "0" + "\tx" * 8 + "\tnan"],
            "label.not_a_number",
            'line 2: column "score"',
            {"found": "nan"},
        ),
        ("sst2", ["sentence\tlabel"], "glue.no_examples", "task.data", {"split": "train"}),
    ],
)
def test_errors_in_a_file_are_named(
    tmp_path: Path, name: str, lines: list[str], key: str, place: str, values: dict[str, Any]
) -> None:
    path = write_lines(tmp_path / "train.tsv", lines)
    place = f"{path}: {place}" if place.startswith("line ") else place
    with refuses(key, place=place, **values):
        glue(tmp_path, name, "train")


def test_a_users_file_needs_only_the_texts(tmp_path: Path) -> None:
    labels = TASKS["sst2"].names
    made = {
        "a.tsv": ["sentence", 'w1 "w2'],
        "a.csv": ["note,sentence,label", "x,w1,1"],
        "a.jsonl": ['{"sentence": "w1", "label": 1}', '{"sentence": "w1", "label": "negative"}'],
    }
    found = {}
    for name, lines in made.items():
        path = write_lines(tmp_path / name, lines)
        family = glue(tmp_path, "sst2", "input", input=path, labels=labels)
        found[name] = labels_of(family.splits["input"])
    assert found == {"a.tsv": [None], "a.csv": [1], "a.jsonl": [1, 0]}
    bare = write_lines(tmp_path / "dev.tsv", TRAIN["cola"][0])
    family = glue(tmp_path, "cola", "input", input=bare, labels=TASKS["cola"].names)
    assert labels_of(family.splits["input"]) == [1, 0]


def submitted(tmp_path: Path, task: str, split: str, predictions: Sequence[str | float]) -> str:
    """Returns the text of the submission file."""
    records = [{"id": n, "prediction": found} for n, found in enumerate(predictions)]
    return write_submission(task, split, records, tmp_path)[0].read_text()


@pytest.mark.parametrize(
    ("task", "predictions", "expected"),
    [
        ("cola", ["acceptable", "unacceptable"], "10"),
        ("sst2", ["negative", "positive"], "01"),
        ("mrpc", ["equivalent", "not_equivalent"], "10"),
        ("qqp", ["not_duplicate", "duplicate"], "01"),
        ("wnli", ["entailment", "not_entailment"], "10"),
        ("qnli", ["entailment", "not_entailment"], ["entailment", "not_entailment"]),
        ("rte", ["not_entailment", "entailment"], ["not_entailment", "entailment"]),
        ("stsb", [5.4, -0.1], ["5.000000", "0.000000"]),
        ("stsb", [2.25, 1 / 3], ["2.250000", "0.333333"]),
    ],
)
def test_a_submission_uses_the_files_label_names(
    tmp_path: Path, task: str, predictions: list[str | float], expected: list[str]
) -> None:
    found = submitted(tmp_path, task, "test", predictions)
    assert found == f"index\tprediction\n0\t{expected[0]}\n1\t{expected[1]}\n"


def test_the_archive_grows_to_all_eleven_and_is_flat(tmp_path: Path) -> None:
    done = []
    for (task, split), name in FILES.items():
        prediction = 1.0 if task == "stsb" else TASKS[task].names[-1]
        submitted(tmp_path, task, split, [prediction])
        done.append(name)
        with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
            assert archive.namelist() == done
            assert archive.read(name) == (tmp_path / name).read_bytes()
    assert (tmp_path / "AX.tsv").read_text() == "index\tprediction\n0\tcontradiction\n"
    # File names in the leaderboard's sample submission.
    names = "AX CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST-2 STS-B WNLI"
    assert sorted(done) == [f"{each}.tsv" for each in names.split()]


def test_a_dev_set_is_not_submitted(tmp_path: Path) -> None:
    allowed = ["test_matched", "test_mismatched", "diagnostic"]
    with refuses("glue.no_submission", found="dev_matched", task="mnli", allowed=allowed):
        submitted(tmp_path, "mnli", "dev_matched", ["neutral"])
    assert not list(tmp_path.iterdir())


def test_submissions_keep_the_files_index(tmp_path: Path) -> None:
    lines = ["index\tsentence1\tsentence2", "4\tw1\tw2", "9\tw1\tw2"]
    write_lines(tmp_path / "test.tsv", lines)
    # The model's label order must not change the file.
    family = glue(tmp_path, "wnli", "test", labels=("entailment", "not_entailment"))
    records = predict(family.splits["test"], [[1, 0], [0, 1]])
    written = family.write_official("test", records, tmp_path / "out")
    assert [path.name for path in written] == ["WNLI.tsv", "submission.zip"]
    assert written[0].read_text() == "index\tprediction\n4\t1\n9\t0\n"
