"""Tests of the cleaning rules that compare documents, for any parts and interruptions."""

import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.reader import open_dataset
from bert_jax.pipelines.cleaning import duplicates
from bert_jax.pipelines.cleaning.duplicates import (
    Signatures,
    find_duplicates,
    find_near_duplicates,
    find_repeats,
    save_hashes,
    spill_part,
    unique_documents,
)
from bert_jax.pipelines.cleaning.rules import CorpusPart
from bert_jax.pipelines.examples import make_examples
from bert_jax.pipelines.preparation import Preparation, read_preparation
from bert_jax.pipelines.section import CleaningSection, NearDuplicatesSection
from bert_jax.pipelines.sources.files import FilePart
from bert_jax.text import load_tokenizer
from tests.corpus import hashes, marker, section, sentences, stop_at, write_corpus, write_tokenizer
from tests.project import refuses


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=12), min_size=1, max_size=5
    ),
    st.sampled_from([3, 1000]),
)
def test_repeats_equal_a_search_in_order(spilled: list[list[tuple[int, bool]]], most: int) -> None:
    seen: set[int] = set()
    expected = []
    for value, gone in (thing for spill in spilled for thing in spill):
        expected.append(not gone and value in seen)
        if not gone:
            seen.add(value)
    dropped = np.array([gone for spill in spilled for _, gone in spill], bool)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_MOST_AT_A_TIME", most)
        spills = [Path(name, str(number)) for number in range(len(spilled))]
        for spill, things in zip(spills, spilled, strict=True):
            spill.mkdir()
            # Spread the values over all 64 bits, as real hashes are.
            save_hashes(spill, "x", np.array([h * (2**64 // 7) for h, _ in things], np.uint64))
        found = find_repeats(spills, "x", dropped=dropped)
    assert found.tolist() == expected


def jaccard(one: list[str], other: list[str], n: int) -> float:
    first, second = ({tuple(d[i : i + n]) for i in range(len(d) - n + 1)} for d in (one, other))
    return len(first & second) / len(first | second)


def test_near_duplicates_share_most_ngrams(tmp_path: Path) -> None:
    near = NearDuplicatesSection()
    rng = np.random.default_rng(3)
    vocabulary = np.array([f"w{n}" for n in range(5000)])
    documents: list[list[str]] = []
    for changed in [0, 1, 3, 6, 12, 40, 120] * 20:
        first = rng.choice(vocabulary, 300).tolist()
        second = list(first)
        for place in rng.choice(300, changed, replace=False):
            second[place] = "changed"
        documents += [first, second]
    similar = [jaccard(documents[i - 1], documents[i], 5) if i % 2 else 0.0 for i in range(280)]
    # Some documents are shorter than an n-gram. Two of the short documents are equal.
    texts = [" ".join(d) for d in documents] + ["a b", "", "a c", "A, b!", "!"]
    spills = []
    for number, some in enumerate((texts[:101], texts[101:180], texts[180:])):
        spills.append(tmp_path / str(number))
        spills[-1].mkdir()
        signatures = Signatures(near)
        for text in some:
            signatures.add(text)
        signatures.save(spills[-1])
    none = np.zeros(len(texts), bool)
    found = find_near_duplicates(spills, near, dropped=none)
    assert found[280:].tolist() == [False, False, False, True, False]
    for flag, similarity in zip(found[:280], similar, strict=True):
        if similarity > 0.9:
            assert flag
        if similarity < 0.55:
            assert not flag
    assert found[:280].sum() >= 60
    assert not find_near_duplicates(spills, near, dropped=~none).any()


EVERYTHING = CleaningSection(
    duplicate_lines="corpus", duplicate_documents=True, near_duplicates=NearDuplicatesSection()
)


def test_the_first_of_equal_documents_and_lines_is_kept(tmp_path: Path) -> None:
    long = [f"{' '.join(f'{word}{n}' for n in range(60))}" for word in ("a", "b", "c")]
    documents = [
        [long[0], "shared"],
        ["own", "shared", "own"],
        [long[0], "shared"],  # equals the first document
        [f"{long[0]} more", "new"],  # nearly equals the first document
        ["new", "shared", "last"],  # "new" occurs before only in a dropped document
        ["shared", "own"],  # emptied: both lines occur before
    ]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join("\n".join(d) for d in documents))
    files = (FilePart(str(path), "a.txt", 0, path.stat().st_size),)
    asked = section(tmp_path, input=(str(path),), cleaning=EVERYTHING)
    part = CorpusPart(0, files, "en", asked, str(tmp_path))
    tally = spill_part(part)
    find_duplicates([part.spill], EVERYTHING)
    left = [document.lines for _, document in unique_documents(part.spill, tally)]
    assert left == [[long[0], "shared"], ["own"], ["new", "last"]]
    assert tally.documents == {
        "read": 6,
        "duplicate_documents": 1,
        "near_duplicates": 1,
        "emptied": 1,
    }
    assert tally.lines == {"read": 14, "duplicate_lines.document": 1, "duplicate_lines.corpus": 4}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Directory with 48 documents in three files of two formats; 40 documents are distinct."""
    write_corpus(tmp_path / "text0.txt", documents=range(20))
    records = [{"text": "\n".join(sentences(d))} for d in [*range(20, 40), *range(0, 20, 5)]]
    (tmp_path / "text1.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    write_corpus(tmp_path / "text2.txt", documents=range(20, 24))
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def cleaned(corpus: Path, **changes: Any) -> Any:
    values = {"input": f"{corpus}/text*", "cleaning": EVERYTHING, "num_shards": 2, **changes}
    return section(corpus, **values)


def preparation(directory: Path) -> Preparation:
    made = read_preparation(directory)
    assert made is not None
    return made


def test_a_cleaned_dataset_has_each_document_once(corpus: Path) -> None:
    made = make_examples(cleaned(corpus))
    record = preparation(corpus / "dataset")
    assert made.corpus.documents == 40
    assert record.documents == {"read": 48, "duplicate_documents": 8, "kept": 40}
    assert record.formats == ("jsonl", "text")
    assert record.cleaning == EVERYTHING
    tokenizer = load_tokenizer(corpus / "tokenizer")
    found: set[str] = set()
    for split in ("train", "validation"):
        dataset = open_dataset(corpus / "dataset", split)
        for example in dataset.__getitems__(range(len(dataset))):
            found.update(tokenizer.pieces(example.input_ids.tolist()))
    assert {piece for piece in found if piece[:4] == "mark"} == {marker(d) for d in range(40)}
    with refuses("examples.other_settings", found=corpus / "dataset") as caught:
        make_examples(cleaned(corpus, cleaning=CleaningSection()))
    assert re.search(r"examples\.cleaning\.\w+ was ", str(caught.value))


@pytest.mark.parametrize("stop", ["cleaned part 2", "tokenised part 1", "shard 1"])
def test_a_stopped_cleaning_resumes(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    make_examples(cleaned(corpus, output=str(corpus / "whole")))
    monkeypatch.setattr("bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES", 2000)
    monkeypatch.setattr(duplicates, "_MOST_AT_A_TIME", 10)
    with pytest.raises(KeyboardInterrupt):
        make_examples(cleaned(corpus), progress=stop_at(stop))
    lines: list[str] = []
    make_examples(cleaned(corpus), progress=lines.append)
    again = [line for line in lines if line.startswith("cleaned part")]
    assert again[:1] == [line for line in again if line.startswith("cleaned part 3 of ")]
    assert bool(again) == stop.startswith("cleaned")
    assert hashes(corpus / "dataset") == hashes(corpus / "whole")


def test_bad_files_are_skipped_and_listed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus / "text3.txt.gz").write_bytes(gzip.compress(b"the old mill .\n" * 5000)[:-30])
    (corpus / "text4.parquet").write_bytes(b"PAR1")
    (corpus / "text5.txt").write_bytes(b"\xff, the end .")
    (corpus / "text6.txt").write_text("x" * 3000)
    (corpus / "text7.txt").write_text("the dog .\n")
    with (corpus / "text1.jsonl").open("a") as file:
        file.write('{"txt": 1}\n')
    (corpus / "text8.txt").touch()

    path_type = type(epath.Path("x"))
    opened = path_type.open

    def refuse(path: epath.Path, *arguments: Any) -> Any:
        if path.name == "text7.txt":
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *arguments)

    monkeypatch.setattr(path_type, "open", refuse)
    settings_ = {"max_line_length": 2000, "cleaning": CleaningSection()}
    refused: dict[str, Any] = {"place": corpus / "text7.txt", "reason": "permission denied"}
    with refuses("file.unreadable", **refused):
        make_examples(cleaned(corpus, **settings_))
    lines: list[str] = []
    skipping = cleaned(corpus, on_error="skip", **settings_)
    made = make_examples(skipping, progress=lines.append)
    record = preparation(corpus / "dataset")
    named = [
        r"text7\.txt: .*permission denied",
        r"text4\.parquet: .* Parquet",
        r'text1\.jsonl: line 25: .*"txt"',
        r"text3\.txt\.gz: .* gzip file",
        r"text5\.txt: .*byte 0, .*UTF-8",
        r"text6\.txt: line 1: .*2,000",
    ]
    assert record.skipped == len(named) == len(record.skipped_listed)
    for pattern in named:
        assert sum(bool(re.search(pattern, s)) for s in record.skipped_listed) == 1
    assert [line for line in lines if line.startswith("skipped: ")] == [
        f"skipped: {line}" for line in record.skipped_listed
    ]
    assert made.corpus.documents == record.documents["kept"] == 48
    changed = cleaned(corpus, output=str(corpus / "other"), on_error="skip", **settings_)
    with pytest.raises(KeyboardInterrupt):
        make_examples(changed, progress=stop_at("shard"))
    with refuses("file.unreadable", **refused):
        make_examples(changed.model_copy(update={"on_error": "fail"}))


def test_problems_skipped_by_an_earlier_run_are_named(corpus: Path) -> None:
    with (corpus / "text1.jsonl").open("a") as file:
        file.write('{"txt": 1}\n')
    skipping = cleaned(corpus, on_error="skip", cleaning=CleaningSection())
    with pytest.raises(KeyboardInterrupt):
        make_examples(skipping, progress=stop_at("shard"))
    with refuses("examples.skipped_before", place="on_error") as caught:
        make_examples(skipping.model_copy(update={"on_error": "fail"}))
    assert "text1.jsonl: line 25: " in str(caught.value)


def test_duplicate_ids_are_named(corpus: Path) -> None:
    records = [{"text": "\n".join(sentences(d)), "id": d % 19} for d in range(20)]
    (corpus / "ids.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    with refuses("text.equal_ids", place="input", found=1, example="ids.jsonl#0"):
        make_examples(
            cleaned(corpus, input=f"{corpus}/ids.jsonl", id_field="id", cleaning=CleaningSection())
        )
