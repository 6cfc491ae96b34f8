"""Tests of making a dataset from text: content, resuming, errors."""

import json
import os
import re
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.dataset.reader import open_dataset
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.pipelines.workspace import Workspace
from bert_jax.text import Tokenizer, load_tokenizer
from tests.corpus import hashes, marker, section, sentences, stop_at, write_corpus, write_tokenizer
from tests.project import refuses

SHARD = re.compile(r"array_record-\d{5}-of-\d{5}$")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Directory with 40 documents in one file, and a tokenizer."""
    write_corpus(tmp_path / "text.txt", documents=range(40))
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def first_spans(directory: Path, split: str, tokenizer: Tokenizer) -> list[list[str]]:
    """Returns the pieces of every example's span A."""
    dataset = open_dataset(directory, split)
    examples = dataset.__getitems__(range(len(dataset)))
    return [tokenizer.pieces(e.input_ids[1 : e.first_length - 1].tolist()) for e in examples]


def markers(pieces: list[str]) -> set[str]:
    return {piece for piece in pieces if piece.startswith("mark")}


def test_every_document_is_in_one_split_verbatim(
    corpus: Path,
) -> None:
    provenance = make_examples(section(corpus))
    tokenizer = load_tokenizer(corpus / "tokenizer")
    held = {
        split: set().union(*map(markers, first_spans(corpus / "dataset", split, tokenizer)))
        for split in ("train", "validation")
    }
    assert held["train"].isdisjoint(held["validation"])
    assert held["train"] | held["validation"] == {marker(d) for d in range(40)}
    for split, documents in held.items():
        assert provenance.splits[split].documents == len(documents)
    assert [s.examples > 0 for s in provenance.splits["train"].shards] == [True] * 3
    assert not (corpus / "dataset.partial").exists()

    texts = {
        marker(d): " ".join(str(i) for ids in tokenizer.encode_batch(sentences(d)) for i in ids)
        for d in range(40)
    }
    labels = Counter()
    dataset = open_dataset(corpus / "dataset", "train")
    for example in dataset.__getitems__(range(len(dataset))):
        spans = np.split(example.input_ids[1:-1], [example.first_length - 2])
        spans[1] = spans[1][1:]
        homes = []
        for span in spans:
            spelled = " ".join(map(str, span.tolist()))
            homes.append({m for m, text in texts.items() if f" {spelled} " in f" {text} "})
        assert homes[0]
        assert homes[1]
        if example.next_sentence_label == 0:
            assert homes[0] & homes[1]
        known = [markers(tokenizer.pieces(span.tolist())) for span in spans]
        if all(known):  # truncation may have removed all markers
            assert (known[0] == known[1]) == (example.next_sentence_label == 0)
        labels[example.next_sentence_label] += 1
    assert min(labels.values()) > 0.2 * sum(labels.values())

    # Another seed gives other examples but holds out the same documents.
    make_examples(section(corpus, seed=12, output=str(corpus / "other")))
    once, other = (
        first_spans(corpus / name, "validation", tokenizer) for name in ("dataset", "other")
    )
    assert once != other
    assert set().union(*map(markers, other)) == held["validation"]


def test_large_shards_have_all_documents_and_true_labels(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(corpus / "text.txt", documents=range(150))
    whole = make_examples(section(corpus, num_shards=1, validation_fraction=0.0))
    monkeypatch.setattr("bert_jax.pipelines.shards.splits.TOKENS_PER_BUCKET", 1000)
    made = make_examples(
        section(corpus, num_shards=1, validation_fraction=0.0, output=str(corpus / "several"))
    )
    assert made.corpus == whole.corpus
    train, other = made.splits["train"], whole.splits["train"]
    assert train.shards != other.shards
    assert (train.documents, train.sentences) == (other.documents, other.sentences)
    assert (train.documents, train.repeated_sentences) == (150, other.repeated_sentences)
    pairs = train.pairs
    assert pairs is not None
    assert (pairs.same_document[1], pairs.other_document[0]) == (0, 0)
    assert sum(pairs.same_document) + sum(pairs.other_document) == train.examples
    dataset = open_dataset(corpus / "several", "train")
    assert len(dataset) == train.examples
    tokenizer = load_tokenizer(corpus / "tokenizer")
    spans = first_spans(corpus / "several", "train", tokenizer)
    assert set().union(*map(markers, spans)) == {marker(d) for d in range(150)}


def stop(corpus: Path) -> Path:
    """Stops a run after its second shard and returns the unfinished directory."""
    with pytest.raises(KeyboardInterrupt):
        make_examples(section(corpus), progress=stop_at("shard 2"))
    return corpus / "dataset.partial"


def test_a_stopped_run_resumes_and_remakes_damaged_shards(corpus: Path) -> None:
    make_examples(section(corpus, output=str(corpus / "whole")))
    partial = stop(corpus)
    finished = {p: p.stat().st_mtime_ns for p in partial.iterdir() if SHARD.search(p.name)}
    assert len(finished) == 2
    with refuses("dataset.missing", place=corpus / "dataset"):
        open_dataset(corpus / "dataset", "train")
    with refuses("dataset.incomplete", place=partial):
        open_dataset(partial, "train")
    damaged = min(finished)
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    lines: list[str] = []
    make_examples(section(corpus, workers=2), progress=lines.append)
    assert not any("tokenised" in line for line in lines)
    assert hashes(corpus / "dataset") == hashes(corpus / "whole")
    for path, modified in finished.items():
        kept = (corpus / "dataset" / path.name).stat().st_mtime_ns == modified
        assert kept == (path != damaged)


def test_an_unfinished_run_is_not_mixed_with_another(corpus: Path) -> None:
    partial = stop(corpus)
    before = sorted(partial.rglob("*"))

    def assert_refused(change: str, **changes: object) -> None:
        with refuses("examples.unfinished", place=partial) as caught:
            make_examples(section(corpus, **changes))
        assert re.search(change, str(caught.value))

    assert_refused(r"examples\.seed was 11, now 12", seed=12)
    assert_refused(r"examples\.max_seq_length was 48, now 32", max_seq_length=32)
    assert_refused(r'examples\.layout was "sentences", now "prose"', layout="prose")
    settings = partial / "work" / "settings.json"
    held = settings.read_text()
    settings.write_text(json.dumps({**json.loads(held), "work_version": -1}))
    assert_refused(r"work_version was -1, now \d+")
    settings.write_text(held)
    os.utime(corpus / "text.txt", (1, 1))
    assert_refused(r"examples\.input: text\.txt was written again")
    (corpus / "text.txt").write_bytes(b"")
    assert_refused(r"examples\.input: text\.txt had [\d,]+ bytes, now 0")
    assert sorted(partial.rglob("*")) == before


def test_a_finished_dataset_is_not_changed(corpus: Path) -> None:
    made = make_examples(section(corpus))
    before = {p.name: p.stat().st_mtime_ns for p in (corpus / "dataset").iterdir()}
    lines: list[str] = []
    assert make_examples(section(corpus, workers=2), progress=lines.append) == made
    assert lines == [f"{corpus / 'dataset'} is already made"]
    assert {p.name: p.stat().st_mtime_ns for p in (corpus / "dataset").iterdir()} == before
    with refuses("examples.other_settings", place="output", change="examples.seed was 11, now 12"):
        make_examples(section(corpus, seed=12))


def test_two_runs_on_one_output_are_refused(corpus: Path) -> None:
    with (
        Workspace(corpus / "dataset"),
        refuses("lock.held", place=corpus / "dataset"),
    ):
        make_examples(section(corpus))
    make_examples(section(corpus))  # the lock has been released


@pytest.mark.parametrize(
    ("bytes_per_file", "named"), [(100_000, r"bert_examples-train\.array_record-"), (500, "work")]
)
def test_a_full_disk_is_one_line_without_partial_files(
    corpus: Path, bytes_per_file: int, named: str
) -> None:
    # This limit makes writes fail as on a full disk, in Python and in the C++ writer.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_per_file, hard))
    try:
        with refuses("disk.full", reason="file too large") as caught:
            make_examples(section(corpus, dupe_factor=40))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search(named, caught.value.place)
    assert not (corpus / "dataset").exists()
    partial = corpus / "dataset.partial"
    assert not [p for p in partial.rglob("*") if SHARD.search(p.name) or p.suffix == ".tmp"]
    # Once there is space, the run resumes and makes the dataset of an uninterrupted run.
    make_examples(section(corpus, dupe_factor=40))
    make_examples(section(corpus, dupe_factor=40, output=str(corpus / "whole")))
    assert hashes(corpus / "dataset") == hashes(corpus / "whole")


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("input_root", "/nowhere", "input.outside_root"),
        ("validation_fraction", 0.001, "examples.validation_fraction"),
        ("num_shards", 1000, "examples.num_shards"),
    ],
)
def test_impossible_settings_are_named(corpus: Path, name: str, value: object, key: str) -> None:
    with refuses(key, place=name, found=value):
        make_examples(section(corpus, **{name: value}))


def test_an_impossible_language_is_named(corpus: Path) -> None:
    with refuses("language.code", place="language", found="english"):
        make_examples(section(corpus, layout="prose", language="english"))


@pytest.mark.parametrize(
    ("text", "on_error", "key"),
    [
        (b"", "fail", "text.empty"),
        (b"a single document .\nof two sentences .\n", "fail", "text.few_documents"),
        (b"A sentence.\n\xff\n", "fail", "text.not_utf8"),
        (b"A sentence.\n\xff\n", "skip", "text.empty"),
    ],
)
def test_an_empty_failed_run_does_not_block_the_next(
    corpus: Path, text: bytes, on_error: str, key: str
) -> None:
    good = (corpus / "text.txt").read_bytes()
    (corpus / "text.txt").write_bytes(text)
    before = sorted(corpus.iterdir())
    evaluation = {"files": (str(corpus / "tokenizer.txt"),), "ngram": 3}  # read before the text
    asked = section(corpus, on_error=on_error, cleaning={"contamination": evaluation})
    with refuses(key):
        make_examples(asked)
    assert sorted(corpus.iterdir()) == before
    (corpus / "text.txt").write_bytes(good)
    make_examples(asked)


def test_differences_from_a_finished_dataset_are_named(corpus: Path) -> None:
    made = section(corpus, cleaning={"contamination": {"files": (str(corpus / "tokenizer.txt"),)}})
    make_examples(made)
    for number in range(5):
        write_corpus(corpus / f"text{number}.txt", documents=range(50, 60))
    write_tokenizer(corpus / "other", documents=100)
    write_corpus(corpus / "elsewhere.txt", documents=range(40))

    def assert_refused(change: str, asked: ExamplesSection, **changes: object) -> None:
        with refuses("examples.other_settings", place="output", found=made.output) as caught:
            make_examples(asked.model_copy(update=changes))
        assert re.search(change, str(caught.value))

    more = r"examples\.input: text0\.txt is new, text1\.txt is new, .*, and 2 more"
    assert_refused(more, made)
    fewer = r"examples\.input: text\.txt is gone, text0\.txt is new"
    assert_refused(fewer, made, input=(f"{corpus}/text0.txt",))
    only = made.model_copy(update={"input": (f"{corpus}/text.txt",)})
    tokenizer = r"examples\.tokenizer had the hash \w{12}…, now \w{12}…"
    assert_refused(tokenizer, only, tokenizer=f"{corpus}/other")
    assert_refused(r"examples\.max_seq_length was 48, now 32", only, max_seq_length=32)
    assert_refused(r'examples\.layout was "sentences", now "prose"', only, layout="prose")
    cleaning = made.cleaning.model_copy(update={"unicode": "nfc"})
    assert_refused(r'examples\.cleaning\.unicode was null, now "nfc"', only, cleaning=cleaning)
    with (corpus / "tokenizer.txt").open("a") as file:
        file.write("one more line\n")
    assert_refused(r"examples\.cleaning\.contamination\.files had other contents", only)


def test_other_files_are_never_overwritten(corpus: Path) -> None:
    (corpus / "file").write_text("in the way")
    with refuses("lock.unusable", place=corpus / "file" / "dataset", reason="File exists"):
        make_examples(section(corpus, output=str(corpus / "file" / "dataset")))
    (corpus / "dataset").mkdir()
    make_examples(section(corpus))  # an empty output directory is allowed
    (corpus / "other").mkdir()
    (corpus / "other" / "thesis.tex").write_text("x")
    with refuses("examples.output_has_files", place="output", found=corpus / "other"):
        make_examples(section(corpus, output=str(corpus / "other")))
    with refuses("examples.output_is_file", place="output", found=corpus / "text.txt"):
        make_examples(section(corpus, output=str(corpus / "text.txt")))
