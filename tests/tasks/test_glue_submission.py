"""What the leaderboard is given."""

import zipfile
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.glue.family import FILES, GlueSection, write_submission
from tests.tasks.sequences import opening, predict, write_lines

NLI = ("entailment", "neutral", "contradiction")


def missing_tasks(directory: Path) -> list[str]:
    return [name for name in FILES.values() if not (directory / name).exists()]


def submitted(tmp_path: Path, task: str, split: str, predictions: list[str | float]) -> str:
    """The text of the file that predictions end up in."""
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
def test_each_task_is_spelled_as_its_files_are(
    tmp_path: Path, task: str, predictions: list[str | float], expected: list[str]
) -> None:
    found = submitted(tmp_path, task, "test", predictions)
    assert found == f"index\tprediction\n0\t{expected[0]}\n1\t{expected[1]}\n"


def test_mnli_makes_three_files(tmp_path: Path) -> None:
    for split in ("test_matched", "test_mismatched", "diagnostic"):
        submitted(tmp_path, "mnli", split, list(NLI))
    names = {path.name for path in tmp_path.glob("*.tsv")}
    assert names == {"MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"}
    assert (tmp_path / "AX.tsv").read_text().splitlines()[3] == "2\tcontradiction"


def test_the_archive_grows_to_all_eleven_and_is_flat(tmp_path: Path) -> None:
    directory = tmp_path / "submission"
    assert missing_tasks(directory) == list(FILES.values())
    done = []
    for (task, split), name in FILES.items():
        predictions = {"stsb": 1.0, "mnli": "neutral", "qnli": "entailment", "rte": "entailment"}
        others = {"cola": "acceptable", "sst2": "positive", "mrpc": "equivalent"}
        others |= {"qqp": "duplicate", "wnli": "entailment"}
        submitted(directory, task, split, [(predictions | others)[task]])
        done.append(name)
        assert missing_tasks(directory) == [left for left in FILES.values() if left not in done]
        with zipfile.ZipFile(directory / "submission.zip") as archive:
            assert archive.namelist() == done
            assert archive.read(name) == (directory / name).read_bytes()
    # The files as the leaderboard's sample submission names them.
    assert sorted(done) == [
        "AX.tsv",
        "CoLA.tsv",
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "MRPC.tsv",
        "QNLI.tsv",
        "QQP.tsv",
        "RTE.tsv",
        "SST-2.tsv",
        "STS-B.tsv",
        "WNLI.tsv",
    ]


def test_a_dev_set_is_not_submitted(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        submitted(tmp_path, "mnli", "dev_matched", ["neutral"])
    assert str(caught.value) == (
        'submission: found split "dev_matched" of mnli, allowed: test_matched, test_mismatched, '
        "diagnostic"
    )
    assert not list(tmp_path.iterdir())


def test_a_family_writes_the_index_of_its_file(tmp_path: Path) -> None:
    lines = ["index\tsentence1\tsentence2", "4\tw1\tw2", "9\tw1\tw2"]
    write_lines(tmp_path / "test.tsv", lines)
    # The model's own order of labels makes no difference to the file.
    labels = ("entailment", "not_entailment")
    family = GlueSection(name="wnli", data=str(tmp_path)).open(
        opening(tmp_path, "test", labels=labels)
    )
    records = predict(family.splits["test"], [[1, 0], [0, 1]])
    written = family.write_official("test", records, tmp_path / "out")
    assert [path.name for path in written] == ["WNLI.tsv", "submission.zip"]
    assert written[0].read_text() == "index\tprediction\n4\t1\n9\t0\n"
