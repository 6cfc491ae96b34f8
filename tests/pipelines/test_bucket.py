"""Tests that datasets made in a bucket equal datasets on a disk."""

from pathlib import Path

import pytest
from etils import epath

from bert_jax.pipelines.examples import ExamplesSection, make_examples
from tests.corpus import section, stop_at, write_corpus, write_tokenizer
from tests.project import refuses
from tests.storage.cloud import Cloud, _calm, _server, cloud  # noqa: F401


@pytest.fixture
def wanted(
    cloud: Cloud,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ExamplesSection:
    """Settings with two input files, several parts, and an output in a bucket."""
    monkeypatch.setattr("bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES", 8000)
    write_corpus(tmp_path / "text0.txt", documents=range(30))
    write_corpus(tmp_path / "text1.txt", documents=range(20, 50))
    write_tokenizer(tmp_path / "tokenizer")
    cleaning = {"duplicate_documents": True, "near_duplicates": {}, "duplicate_lines": "corpus"}
    return section(tmp_path, cleaning=cleaning, output=f"{cloud.make_bucket()}/dataset")


def files(directory: object) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in epath.Path(str(directory)).iterdir()}


def test_a_stopped_run_resumes_in_the_bucket(wanted: ExamplesSection, tmp_path: Path) -> None:
    here = wanted.model_copy(update={"output": str(tmp_path / "dataset")})
    make_examples(here)
    with pytest.raises(KeyboardInterrupt):
        make_examples(wanted, progress=stop_at("tokenised part 3 "))
    part = epath.Path(f"{wanted.output}.partial/work/part-00001")
    # Imitates a kill while the directory is written: the last file is missing.
    (part / "tally.json").unlink()
    (part / "counts.npy").write_bytes(b"half")
    with pytest.raises(KeyboardInterrupt):
        make_examples(wanted, progress=stop_at("shard 2 "))
    assert "provenance.json" not in files(wanted.output)
    with refuses("examples.unfinished", change="examples.seed was 11, now 12"):
        make_examples(wanted.model_copy(update={"seed": 12}))
    made = make_examples(wanted)
    assert files(wanted.output) == files(here.output)
    assert make_examples(wanted) == made


def test_other_files_in_the_bucket_are_never_overwritten(wanted: ExamplesSection) -> None:
    (epath.Path(wanted.output) / "thesis.tex").write_text("x")
    with refuses("examples.output_has_files", found=wanted.output):
        make_examples(wanted)
