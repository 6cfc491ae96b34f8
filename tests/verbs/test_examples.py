"""The verb `examples`: a dataset, its report, printed examples and TFRecords."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.text import load_tokenizer
from tests.corpus import hashes, original, section, write_corpus, write_tokenizer
from tests.project import ok, refused, says, write_config
from tests.report.strict_html import read


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 60 documents and its dataset, configured in `run.yaml`."""
    root = tmp_path_factory.mktemp("made")
    write_corpus(root / "text.txt", documents=range(60))
    write_tokenizer(root / "tokenizer")
    settings: dict[str, Any] = section(root).model_dump(mode="json", exclude_unset=True)
    ok("examples", write_config(root / "run.yaml", {"seed": 4, "examples": settings}))
    return root


def look(root: Path, *arguments: object) -> str:
    return ok("examples", root / "run.yaml", *arguments)


def test_a_report_needs_no_text_and_changes_no_file(made: Path) -> None:
    before = hashes(made / "dataset")
    (made / "text.txt").unlink(missing_ok=True)
    assert "dataset.report.html: written" in look(made, "--report")
    assert hashes(made / "dataset") == before
    document = read((made / "dataset.report.html").read_text())
    provenance = read_provenance(made / "dataset")
    train = open_dataset(made / "dataset", "train")
    text = document.text
    assert f"train {provenance.splits['train'].documents} {len(train):,}" in text
    random = sum(e.next_sentence_label for e in train.__getitems__(range(len(train))))
    assert f"B is random {random / len(train):.2%} {random}" in text
    assert f"train 0 {random}" in text  # row of the purity table
    assert len([tag for tag in document.named("li") if tag.parents[-1] == "ol"]) == 20
    tokens = int(train.lengths.sum())
    assert f"one example per row {1 - tokens / (48 * len(train)):.2%}" in text
    counts = Counter(t for e in train.__getitems__(range(len(train))) for t in e.input_ids.tolist())
    tokenizer = load_tokenizer(made / "tokenizer")
    del counts[tokenizer.special.cls], counts[tokenizer.special.sep]
    (top, count), *_ = counts.most_common(1)
    assert f"{tokenizer.pieces([top])[0]} {count / tokens:.2%} {count:,}" in text


def test_inspected_examples_contain_the_text(made: Path) -> None:
    train = open_dataset(made / "dataset", "train")
    tokenizer = load_tokenizer(made / "tokenizer")
    printed = look(made, "--inspect", len(train))
    heads = [line for line in printed.splitlines() if line.startswith("example ")]
    assert len(heads) == len(train)
    lines = [line[3:] for line in printed.splitlines() if line[:3] in ("A  ", "B  ")]
    for at, example in enumerate(train.__getitems__(range(len(train)))):
        first = tokenizer.pieces(example.input_ids[1 : example.first_length - 1].tolist())
        second = tokenizer.pieces(example.input_ids[example.first_length : -1].tolist())
        found = [list(map(original, line.split())) for line in lines[2 * at : 2 * at + 2]]
        assert found == [first, second]  # every word of this vocabulary is one piece
    assert "[MASK]⟨" in printed
    assert "⟨=⟩" in printed
    assert "⟨…⟩: the original of a masked or replaced token" in printed.splitlines()[-1]


def test_masks_follow_the_configuration(made: Path) -> None:
    printed = look(
        made,
        "objective.masking.rate=0.4",
        "objective.masking.replace_with_mask=0",
        "objective.masking.replace_with_random=1",
        "--inspect",
        5,
    )
    predicted = [int(line.split()[-3]) for line in printed.splitlines() if " to predict" in line]
    tokens = [int(line.split()[-5]) for line in printed.splitlines() if " to predict" in line]
    assert predicted == [round(0.4 * count) for count in tokens]
    assert printed.count("[MASK]") < sum(predicted) / 10  # a random piece may be [MASK]


def test_tfrecords_are_written_from_a_finished_dataset(made: Path, tmp_path: Path) -> None:
    printed = look(made, "--tfrecords", tmp_path / "out")
    train = open_dataset(made / "dataset", "train")
    written = open_google_bert(tmp_path / "out", "train")
    assert len(written) == len(train)
    assert len(open_google_bert(tmp_path / "out", "validation")) > 0
    assert f"{len(train):,} of train" in printed
    assert written.summary.slots == 8  # 15% of 48, rounded up
    again = refused("examples", made / "run.yaml", "--tfrecords", tmp_path / "out")
    says(again, key="output.exists", place=str(tmp_path / "out"))


def test_inspecting_refuses_changed_settings(made: Path, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "other", documents=100)
    for key, value, error in [
        ("examples.dupe_factor", 4, "examples.setting_changed"),
        ("examples.seed", 5, "examples.setting_changed"),
        ("examples.tokenizer", f"{tmp_path}/other", "examples.tokenizer_changed"),
    ]:
        override = f"{key}={value}"
        line = refused("examples", made / "run.yaml", override, "--tfrecords", tmp_path / "out")
        says(line, key=error, place=key, found=value)
    assert not (tmp_path / "out").exists()
