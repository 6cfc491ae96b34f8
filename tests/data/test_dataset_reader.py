import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.data.dataset.provenance import FORMAT_VERSION
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.dataset.schema import ExampleEncoder, decode
from bert_jax.pipelines.examples import make_examples
from tests.corpus import SPECIAL, make_dataset, marker, section, write_corpus, write_tokenizer
from tests.project import refuses

CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    make_dataset(root)
    return root / "dataset"


@pytest.fixture
def copy(directory: Path, tmp_path: Path) -> Path:
    """Directory of a dataset that tests damage."""
    return Path(shutil.copytree(directory, tmp_path / "dataset"))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tfds_reads_the_same_examples(directory: Path, split: str) -> None:
    dataset = open_dataset(directory, split)
    source = tfds.builder_from_directory(directory).as_data_source(split=split)
    assert len(source) == len(dataset) > 10
    for theirs, ours in zip(source, dataset.__getitems__(range(len(dataset))), strict=True):
        assert theirs["input_ids"].dtype == ours.input_ids.dtype == np.uint16
        assert theirs["input_ids"].tolist() == ours.input_ids.tolist()
        assert theirs["first_length"] == ours.first_length
        assert theirs["next_sentence_label"] == ours.next_sentence_label


def test_examples_come_in_the_requested_order(directory: Path) -> None:
    dataset = open_dataset(directory, "train")
    indices = [*np.random.default_rng(0).permutation(len(dataset)).tolist(), 0, 0]
    again = pickle.loads(pickle.dumps(dataset)).__getitems__(indices)
    for index, example in zip(indices, again, strict=True):
        assert example.input_ids.tolist() == dataset[index].input_ids.tolist()
        assert dataset.lengths[index] == len(example.input_ids)
    assert isinstance(dataset.lengths, np.memmap)
    assert dataset.provenance.splits["train"].tokens == dataset.lengths.sum()


def test_the_fingerprint_follows_the_content(directory: Path, tmp_path: Path) -> None:
    fingerprint = open_dataset(directory, "train").fingerprint
    same, other = tmp_path / "same", tmp_path / "other"
    for root in (same, other):
        root.mkdir()
    make_dataset(same)
    make_dataset(other, seed=12)
    assert open_dataset(same / "dataset", "train").fingerprint == fingerprint
    assert open_dataset(other / "dataset", "train").fingerprint != fingerprint
    assert open_dataset(directory, "validation").fingerprint != fingerprint


def test_an_unknown_split_suggests_the_nearest_name(directory: Path) -> None:
    hint = '; did you mean "validation"?'
    with refuses("dataset.split_unknown", place=directory, name="validate", hint=hint):
        open_dataset(directory, "validate")


def first_shard(directory: Path) -> Path:
    return directory / open_dataset(directory, "train").provenance.splits["train"].shards[0].name


@pytest.mark.parametrize(
    ("name", "keep", "key"),
    [
        ("provenance.json", None, "dataset.incomplete"),
        ("shard", None, "dataset.file_missing"),
        ("shard", -1000, "dataset.file_size"),
        ("train.lengths.npy", None, "dataset.file_missing"),
        ("train.lengths.npy", -2, "dataset.file_hash"),
    ],
)
def test_a_missing_or_truncated_file_is_named_at_open(
    copy: Path, name: str, keep: int | None, key: str
) -> None:
    path = first_shard(copy) if name == "shard" else copy / name
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    with refuses(key, place=copy if name == "provenance.json" else path):
        open_dataset(copy, "train")


def test_a_damaged_shard_is_named_on_reading(copy: Path) -> None:
    shard = first_shard(copy)
    content = bytearray(shard.read_bytes())
    content[300] ^= 0xFF
    shard.write_bytes(content)
    dataset = open_dataset(copy, "train")
    with refuses("dataset.shard_damaged", place=shard):
        dataset.__getitems__(range(len(dataset)))
    with refuses("dataset.file_hash", place=shard):
        dataset.verify()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "json.invalid"),
        ("{", "json.invalid"),
        ("[]", "json.kind"),
        ('{"format_version": 1}', "setting.missing"),
        ('{"seed": 1}', "dataset.no_format"),
    ],
)
def test_a_damaged_provenance_is_one_line(copy: Path, text: str, key: str) -> None:
    path = copy / "provenance.json"
    path.write_text(text)
    with refuses(key) as caught:
        open_dataset(copy, "train")
    assert str(caught.value).startswith(f"{path}: ")


def test_a_newer_format_is_refused(copy: Path) -> None:
    path = copy / "provenance.json"
    content = json.loads(path.read_text())
    content["format_version"] = FORMAT_VERSION + 1
    path.write_text(json.dumps(content))
    with refuses("dataset.newer_format", place=path, found=FORMAT_VERSION + 1):
        open_dataset(copy, "train")


def test_a_vocabulary_beyond_two_bytes_is_stored_in_four(tmp_path: Path) -> None:
    for file, documents in (("text0.txt", range(30)), ("text1.txt", range(30, 60))):
        write_corpus(tmp_path / file, documents=documents)
    # The markers are the last pieces, so their ids need more than two bytes.
    filler = [f"filler{i}" for i in range(1 << 16)]
    write_tokenizer(tmp_path / "tokenizer", documents=0, extra=[*filler, *map(marker, range(60))])
    made = make_examples(section(tmp_path))
    assert made.token_dtype == "uint32"
    dataset = open_dataset(tmp_path / "dataset", "train")
    source = tfds.builder_from_directory(tmp_path / "dataset").as_data_source(split="train")
    assert dataset[0].input_ids.dtype == source[0]["input_ids"].dtype == np.uint32
    assert dataset[0].input_ids.max() > 1 << 16
    assert dataset[0].input_ids.tolist() == source[0]["input_ids"].tolist()


def test_encoding_is_invertible_and_deterministic() -> None:
    ids = np.arange(7, dtype=np.uint16)
    encoder = ExampleEncoder()
    record = encoder.encode(ids.tobytes(), first_length=4, next_sentence_label=1)
    assert encoder.encode(ids[:3].tobytes(), first_length=3, next_sentence_label=0) != record
    assert encoder.encode(ids.tobytes(), first_length=4, next_sentence_label=1) == record
    example = decode(record, ids.dtype)
    assert (example.input_ids.tolist(), *example[1:]) == (ids.tolist(), 4, 1)
    with pytest.raises(ValueError, match="not an example"):
        decode(b"nonsense", ids.dtype)
