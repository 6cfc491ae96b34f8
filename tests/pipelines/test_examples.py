import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import tensorflow_datasets as tfds

from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.index import unigram_entropy
from bert_jax.errors import UserError
from bert_jax.pipelines.examples import make_examples
from bert_jax.pipelines.shards.document_buckets import bucket_ranges, default_shards
from bert_jax.pipelines.tokenised import tokenise
from bert_jax.pipelines.workspace import Workspace
from bert_jax.text import Tokenizer, load_tokenizer
from tests.corpus import make_dataset, marker, section, sentences, write_corpus, write_tokenizer

ROOT = Path(__file__).parents[2]
SHARD = re.compile(r"array_record-\d{5}-of-\d{5}$")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A directory with 40 documents in one file and a tokenizer."""
    write_corpus(tmp_path / "text.txt", documents=range(40))
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def files(directory: Path) -> dict[str, str]:
    """Hash of every file of a dataset."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


def first_spans(directory: Path, split: str, tokenizer: Tokenizer) -> list[list[str]]:
    """The pieces of every example's span A."""
    dataset = open_dataset(directory, split)
    examples = dataset.__getitems__(range(len(dataset)))
    return [tokenizer.pieces(e.input_ids[1 : e.first_length - 1].tolist()) for e in examples]


def markers(pieces: list[str]) -> set[str]:
    return {piece for piece in pieces if piece.startswith("mark")}


def test_a_dataset_holds_every_document_in_one_split(corpus: Path) -> None:
    provenance = make_examples(section(corpus))
    tokenizer = load_tokenizer(corpus / "tokenizer")
    found = {
        split: set().union(*map(markers, first_spans(corpus / "dataset", split, tokenizer)))
        for split in ("train", "validation")
    }
    assert found["train"].isdisjoint(found["validation"])
    assert found["train"] | found["validation"] == {marker(d) for d in range(40)}
    for split, documents in found.items():
        assert provenance.splits[split].documents == len(documents)
    assert [s.examples > 0 for s in provenance.splits["train"].shards] == [True] * 3
    assert not (corpus / "dataset.partial").exists()


def test_spans_are_stretches_of_the_text(corpus: Path) -> None:
    make_examples(section(corpus))
    tokenizer = load_tokenizer(corpus / "tokenizer")
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
        if all(known):  # not where truncation has left no marker
            assert (known[0] == known[1]) == (example.next_sentence_label == 0)
        labels[example.next_sentence_label] += 1
    assert min(labels.values()) > 0.2 * sum(labels.values())


def test_the_bytes_do_not_depend_on_the_workers_nor_on_the_parts(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_examples(section(corpus))
    once = files(corpus / "dataset")
    make_examples(section(corpus, output=str(corpus / "three"), workers=3))
    assert files(corpus / "three") == once
    monkeypatch.setattr("bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES", 1000)
    lines: list[str] = []
    make_examples(section(corpus, output=str(corpus / "parts")), progress=lines.append)
    assert sum(line.startswith("tokenised part") for line in lines) > 5
    assert files(corpus / "parts") == once


def test_a_shard_of_several_buckets_has_all_documents_and_truthful_labels(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(corpus / "text.txt", documents=range(150))
    whole = make_examples(section(corpus, num_shards=1, validation_fraction=0.0))
    monkeypatch.setattr("bert_jax.pipelines.shards.document_buckets.TOKENS_PER_BUCKET", 1000)
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


def test_the_seed_decides_the_examples_but_not_who_is_held_out(corpus: Path) -> None:
    make_examples(section(corpus))
    make_examples(section(corpus, seed=12, output=str(corpus / "other")))
    tokenizer = load_tokenizer(corpus / "tokenizer")
    once, other = (
        first_spans(corpus / name, "validation", tokenizer) for name in ("dataset", "other")
    )
    assert once != other
    assert set().union(*map(markers, once)) == set().union(*map(markers, other))
    assert files(corpus / "dataset").keys() == files(corpus / "other").keys()


def test_moving_the_corpus_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    make_examples(section(corpus))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(corpus / "text.txt", elsewhere)
    make_examples(section(corpus, input=f"{elsewhere}/text.txt", output=str(elsewhere / "dataset")))
    assert files(elsewhere / "dataset") == files(corpus / "dataset")


def test_figures_of_the_corpus(corpus: Path) -> None:
    with (corpus / "text.txt").open("a") as file:
        file.write("\nzebra quux\nthe xyzzy .\n")
    made = make_examples(section(corpus)).corpus
    tokenizer = load_tokenizer(corpus / "tokenizer")
    lines = [line for line in (corpus / "text.txt").read_text().splitlines() if line]
    counts = Counter(token for ids in tokenizer.encode_batch(lines) for token in ids)
    total = counts.total()
    shares = np.array(list(counts.values())) / total
    assert (made.documents, made.sentences, made.tokens) == (41, len(lines), total)
    assert made.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-12)
    assert made.unknown_rate == pytest.approx(3 / total)
    assert unigram_entropy(np.array([2, 0, 2])) == pytest.approx(np.log(2))


def test_prose_is_split_into_the_sentences_of_the_other_layout(corpus: Path) -> None:
    documents = [
        [f"Mark{d} saw the old mill.", f"The dog of mark{d} crossed the bridge!", "Again?"]
        for d in range(30)
    ]
    (corpus / "text.txt").write_text("\n\n".join("\n".join(d) for d in documents))
    (corpus / "prose.txt").write_text("\n\n".join(f"{d[0]} {d[1]}\n{d[2]}" for d in documents))
    lines = make_examples(section(corpus))
    made = make_examples(
        section(
            corpus,
            input=str(corpus / "prose.txt"),
            output=str(corpus / "other"),
            layout="prose",
        )
    )
    assert made.corpus == lines.corpus
    assert made.corpus.sentences == 90
    assert (made.text.layout, made.text.language) == ("prose", "en")


def test_lines_that_are_paragraphs_are_named(corpus: Path) -> None:
    articles = "".join(
        f'<doc id="{n}" url="u" title="t">\n{" ".join(sentences(n))}\n</doc>\n' for n in range(40)
    )
    (corpus / "wiki.txt").write_text(articles, encoding="utf-8")
    lines: list[str] = []
    wiki = {"input": (str(corpus / "wiki.txt"),), "validation_fraction": 0.0}
    make_examples(section(corpus, **wiki), progress=lines.append)
    assert any("layout: prose" in line for line in lines)
    lines.clear()
    output = str(corpus / "prose")
    make_examples(section(corpus, **wiki, layout="prose", output=output), progress=lines.append)
    assert not any("layout: prose" in line for line in lines)


def test_each_file_can_be_a_document(corpus: Path) -> None:
    (corpus / "text.txt").unlink()
    for document in range(30):
        write_corpus(corpus / f"text{document}.txt", documents=range(document, document + 1))
    with (corpus / "text7.txt").open("a") as file:
        file.write("\n\nthe dog .\n")
    made = make_examples(section(corpus, documents="file"))
    assert made.corpus.documents == 30
    assert len(made.text.files) == 30


def test_packed_text_gives_the_same_corpus(corpus: Path) -> None:
    plain = make_examples(section(corpus))
    packed = corpus / "packed.gz"
    packed.write_bytes(gzip.compress((corpus / "text.txt").read_bytes()))
    made = make_examples(section(corpus, input=str(packed), output=str(corpus / "other")))
    assert made.corpus == plain.corpus


def test_without_a_validation_fraction_there_is_one_split(corpus: Path) -> None:
    made = make_examples(section(corpus, validation_fraction=0.0))
    assert list(made.splits) == ["train"]
    assert list(tfds.builder_from_directory(corpus / "dataset").info.splits) == ["train"]
    assert made.splits["train"].documents == 40


def killed_run(corpus: Path) -> None:
    """Runs in a process of its own, and kills it when the second shard is finished."""
    program = textwrap.dedent(
        f"""
        import os, signal, pathlib
        from bert_jax.pipelines.examples import make_examples
        from tests.corpus import section
        def progress(line):
            if line.startswith("shard 2"):
                os.kill(os.getpid(), signal.SIGKILL)
        make_examples(section(pathlib.Path({str(corpus)!r})), progress=progress)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_run_goes_on_where_it_ended(corpus: Path) -> None:
    make_examples(section(corpus, output=str(corpus / "whole")))
    killed_run(corpus)
    partial = corpus / "dataset.partial"
    finished = {p: p.stat().st_mtime_ns for p in partial.iterdir() if SHARD.search(p.name)}
    assert len(finished) == 2
    for directory in (corpus / "dataset", partial):
        with pytest.raises(UserError, match="expected a dataset that"):
            open_dataset(directory, "train")
    lines: list[str] = []
    make_examples(section(corpus, workers=2), progress=lines.append)
    assert not any("tokenised" in line for line in lines)
    assert files(corpus / "dataset") == files(corpus / "whole")
    for path, modified in finished.items():
        assert (corpus / "dataset" / path.name).stat().st_mtime_ns == modified


def test_a_finished_shard_that_was_damaged_since_is_made_again(corpus: Path) -> None:
    make_examples(section(corpus, output=str(corpus / "whole")))
    killed_run(corpus)
    shard = next(p for p in (corpus / "dataset.partial").iterdir() if SHARD.search(p.name))
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    make_examples(section(corpus))
    assert files(corpus / "dataset") == files(corpus / "whole")


def test_an_unfinished_run_is_not_mixed_with_another(corpus: Path) -> None:
    killed_run(corpus)
    with pytest.raises(UserError, match=r"dataset\.partial: .* examples\.seed was 11, now 12"):
        make_examples(section(corpus, seed=12))
    with pytest.raises(UserError, match=r"max_seq_length"):
        make_examples(section(corpus, max_seq_length=32))
    os.utime(corpus / "text.txt", (1, 1))
    with pytest.raises(UserError, match=r"examples\.input: text\.txt was written again since"):
        make_examples(section(corpus))


def test_an_unfinished_run_of_another_release_is_refused(corpus: Path) -> None:
    killed_run(corpus)
    settings = corpus / "dataset.partial" / "work" / "settings.json"
    held = json.loads(settings.read_text())
    settings.write_text(json.dumps({**held, "work_version": held["work_version"] - 1}))
    with pytest.raises(UserError, match=r"an unfinished run of another version"):
        make_examples(section(corpus))


def test_a_mistake_leaves_the_finished_parts_of_a_killed_run(corpus: Path) -> None:
    killed_run(corpus)
    partial = corpus / "dataset.partial"
    before = sorted(partial.rglob("*"))
    with pytest.raises(UserError, match="unfinished run with other settings"):
        make_examples(section(corpus, max_seq_length=32))
    good = (corpus / "text.txt").read_bytes()
    (corpus / "text.txt").write_bytes(b"")
    with pytest.raises(UserError, match=r"examples\.input: text\.txt had [\d,]+ bytes, now 0;"):
        make_examples(section(corpus))
    assert sorted(partial.rglob("*")) == before
    (corpus / "text.txt").write_bytes(good)


def test_a_finished_dataset_is_left_alone(corpus: Path) -> None:
    made = make_examples(section(corpus))
    before = {p.name: p.stat().st_mtime_ns for p in (corpus / "dataset").iterdir()}
    lines: list[str] = []
    assert make_examples(section(corpus, workers=2), progress=lines.append) == made
    assert lines == [f"{corpus / 'dataset'} is already made"]
    assert {p.name: p.stat().st_mtime_ns for p in (corpus / "dataset").iterdir()} == before
    with pytest.raises(UserError, match=r"examples\.seed was 11, now 12"):
        make_examples(section(corpus, seed=12))


def test_other_files_are_never_overwritten(corpus: Path) -> None:
    (corpus / "dataset").mkdir()
    make_examples(section(corpus))  # an empty directory is as good as none
    (corpus / "other").mkdir()
    (corpus / "other" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds other files"):
        make_examples(section(corpus, output=str(corpus / "other")))
    with pytest.raises(UserError, match="is a file"):
        make_examples(section(corpus, output=str(corpus / "text.txt")))


def test_two_runs_on_one_output_are_refused(corpus: Path) -> None:
    with (
        Workspace(corpus / "dataset"),
        pytest.raises(UserError, match=r"dataset: another run is making this dataset"),
    ):
        make_examples(section(corpus))
    make_examples(section(corpus))  # the lock went with its holder


def test_a_missing_input_is_named(corpus: Path) -> None:
    with pytest.raises(UserError, match=r'no file .*texd\.txt; did you mean "text\.txt"'):
        make_examples(section(corpus, input=str(corpus / "texd.txt")))
    with pytest.raises(UserError, match="tokeniser: found no such directory"):
        make_examples(section(corpus, tokenizer=str(corpus / "tokeniser")))


@pytest.mark.parametrize("text", ["", "\n \n\t\n", "\u200b\n\n\x00\n"])
def test_an_empty_corpus_is_refused(corpus: Path, text: str) -> None:
    # Zero-width spaces and NULs are lines, but have no tokens.
    (corpus / "text.txt").write_text(text)
    with pytest.raises(UserError, match="input: no document"):
        make_examples(section(corpus))
    assert not (corpus / "dataset").exists()


def test_one_document_is_refused(corpus: Path) -> None:
    write_corpus(corpus / "text.txt", documents=range(1))
    with pytest.raises(UserError, match="input: 1 document, kind: nsp needs at least 2"):
        make_examples(section(corpus))


def test_a_split_with_fewer_than_two_documents_names_the_fraction(corpus: Path) -> None:
    with pytest.raises(
        UserError, match=r"0\.001 of 40 .* for validation, which needs \d+; allowed: another"
    ):
        make_examples(section(corpus, validation_fraction=0.001))


@pytest.mark.parametrize(
    ("refused", "taken", "again"),
    [
        ({"validation_fraction": 0.001}, {"validation_fraction": 0.0}, True),
        ({"num_shards": 1000}, {"num_shards": 3}, False),
    ],
)
def test_the_setting_that_a_refusal_asks_for_works(
    corpus: Path, refused: dict[str, Any], taken: dict[str, Any], again: bool
) -> None:
    """Both are found wanting only after the text was tokenised."""
    make_examples(section(corpus, output=str(corpus / "whole"), **taken))
    with pytest.raises(UserError, match=f"^{next(iter(refused))}: "):
        make_examples(section(corpus, **refused))
    lines: list[str] = []
    make_examples(section(corpus, **taken), progress=lines.append)
    assert any("tokenised" in line for line in lines) == again
    assert files(corpus / "dataset") == files(corpus / "whole")


def test_a_shard_without_two_documents_is_refused(corpus: Path) -> None:
    with pytest.raises(UserError, match=r"num_shards: 30, allowed: at most 1\d"):
        make_examples(section(corpus, num_shards=30))


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_that_are_not_utf8_are_named_with_their_offset(corpus: Path, workers: int) -> None:
    path = corpus / "text.txt"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\nf\xfcr\n")
    (corpus / "text2.txt").write_text("fine\n" * (1 << 19))  # a part of its own
    with pytest.raises(UserError, match=rf"text\.txt: byte {size + 2} is not UTF-8"):
        make_examples(section(corpus, workers=workers))
    assert not (corpus / "dataset").exists()


def test_a_line_of_a_million_characters_is_named(corpus: Path) -> None:
    path = corpus / "text.txt"
    lines = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write("x" * 1_000_000 + "\n")
    with pytest.raises(UserError, match=rf"text\.txt: line {lines + 1} has 1,000,000 characters"):
        make_examples(section(corpus))


def test_a_vocabulary_without_mask_is_refused(corpus: Path) -> None:
    vocabulary = corpus / "tokenizer" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("[MASK]", "[MUSK]"))
    with pytest.raises(UserError, match=r"\[MASK\]"):
        make_examples(section(corpus))


class Shrunken:
    """A tokenizer that claims fewer ids than it gives."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = 40

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_a_token_id_beyond_the_vocabulary_is_refused(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenise, "load_tokenizer", lambda d: Shrunken(load_tokenizer(d)))
    tokenise._tokenizer.cache_clear()
    try:
        with pytest.raises(UserError, match=r"tokenizer: gives token id 66, allowed: 0 to 39"):
            make_examples(section(corpus))
    finally:
        tokenise._tokenizer.cache_clear()


def limited_run(corpus: Path, *, bytes_per_file: int) -> str:
    """Runs in a process whose files may not grow beyond a limit; returns the error it ends with.

    The system refuses the write as it does on a full disk, in Python and in the C++ writer.
    """
    program = textwrap.dedent(
        f"""
        import pathlib, resource
        from bert_jax.errors import UserError
        from bert_jax.pipelines.examples import make_examples
        from tests.corpus import section
        resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_per_file}, {bytes_per_file}))
        try:
            make_examples(section(pathlib.Path({str(corpus)!r}), dupe_factor=40))
        except UserError as error:
            print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("bytes_per_file", "named"), [(100_000, r"bert_examples-train\.array_record-"), (500, "work")]
)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    corpus: Path, bytes_per_file: int, named: str
) -> None:
    message = limited_run(corpus, bytes_per_file=bytes_per_file)
    assert re.search(rf"{named}.*: file too large while writing; make room and run again", message)
    assert "\n" not in message
    assert not (corpus / "dataset").exists()
    partial = corpus / "dataset.partial"
    assert not [p for p in partial.rglob("*") if SHARD.search(p.name) or p.suffix == ".tmp"]
    # With room again the same run goes through, and equals one that never stopped.
    make_examples(section(corpus, dupe_factor=40))
    make_examples(section(corpus, dupe_factor=40, output=str(corpus / "whole")))
    assert files(corpus / "dataset") == files(corpus / "whole")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"language": "english"}, "language"),
        ({"input_root": "/nowhere"}, "input_root"),
    ],
)
def test_settings_that_cannot_be_met_are_named(
    corpus: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=f"^{named}: "):
        make_examples(section(corpus, **changes))


@pytest.mark.parametrize(
    "changes",
    [{"layout": "verse"}, {"documents": "page"}, {"validation_fraction": 0.7}, {"workers": 0}],
)
def test_settings_out_of_range_are_refused(corpus: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError, match=next(iter(changes))):
        section(corpus, **changes)


def test_buckets_are_equal_ranges_of_the_order_of_keys() -> None:
    keys = np.sort(np.random.default_rng(0).integers(0, 2**64, 1003, dtype=np.uint64))
    ranges = bucket_ranges(keys, 10)
    sizes = [int(((keys >= first) & (keys <= last)).sum()) for first, last in ranges]
    assert sum(sizes) == 1003
    assert set(sizes) <= {100, 101}


@pytest.mark.parametrize(
    ("documents", "tokens", "shards"),
    [(2, 10, 1), (370, 2_200_000, 3), (20, 50_000_000, 1), (7_000_000, 3_000_000_000, 1024)],
)
def test_the_default_number_of_shards_follows_the_corpus(
    documents: int, tokens: int, shards: int
) -> None:
    assert default_shards(documents=documents, tokens=tokens) == shards


def test_the_lengths_index_is_a_npy_file_of_all_examples(tmp_path: Path) -> None:
    made = make_dataset(tmp_path)
    for name, split in made.splits.items():
        path = tmp_path / "dataset" / f"{name}.lengths.npy"
        lengths = np.load(path)
        dataset = open_dataset(tmp_path / "dataset", name)
        assert lengths.dtype == np.uint16
        assert lengths.tolist() == [len(dataset[i].input_ids) for i in range(split.examples)]
        np.save(tmp_path / "again.npy", lengths)
        assert path.read_bytes() == (tmp_path / "again.npy").read_bytes()


def test_tfds_files_name_the_splits_and_their_sizes(tmp_path: Path) -> None:
    made = make_dataset(tmp_path)
    info = json.loads((tmp_path / "dataset" / "dataset_info.json").read_text())
    for split in info["splits"]:
        shards = made.splits[split["name"]].shards
        assert [int(n) for n in split["shardLengths"]] == [shard.examples for shard in shards]
        assert int(split["numBytes"]) == sum(shard.bytes for shard in shards)
