"""Tests of TFRecords: TensorFlow and our reader read the dataset's examples with masks."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.dataset.reader import open_dataset
from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.pipelines.shards.google_bert_tfrecords import write_tfrecords
from bert_jax.text import load_tokenizer
from tests.corpus import make_dataset
from tests.data.google_bert_writer import read_release
from tests.project import refuses

LENGTH = 48


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    make_dataset(directory)
    return directory


def rows_of(directory: Path, **masking: object) -> MaskingTransform:
    return MaskingTransform.from_tokenizer(
        load_tokenizer(directory / "tokenizer"),
        seq_length=LENGTH,
        masking=MaskingSection.model_validate(masking),
    )


def test_tensorflow_reads_every_example_with_its_masks(made: Path, tmp_path: Path) -> None:
    dataset = open_dataset(made / "dataset", "train")
    rows = rows_of(made)
    written = write_tfrecords([dataset], tmp_path / "out", rows=rows, seed=3)
    assert written == {"train": len(dataset)}
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == [f"train.tfrecord-0000{at}-of-00003" for at in range(3)]
    read = read_release(paths, length=LENGTH, slots=rows.max_predictions)
    originals = Counter()
    for row in read:
        length, count = sum(row["input_mask"]), int(sum(row["masked_lm_weights"]))
        ids = np.array(row["input_ids"])
        assert not ids[length:].any()
        places = row["masked_lm_positions"][:count]
        ids[places] = row["masked_lm_ids"][:count]
        key = (*ids[:length].tolist(), row["segment_ids"].count(1), *row["next_sentence_labels"])
        originals[key] += 1
        assert count == min(rows.max_predictions, max(1, round(length * 0.15)))
    wanted = Counter(
        (*e.input_ids.tolist(), len(e.input_ids) - e.first_length, e.next_sentence_label)
        for e in dataset.__getitems__(range(len(dataset)))
    )
    assert originals == wanted


def test_written_splits_are_read_back(made: Path, tmp_path: Path) -> None:
    splits = [open_dataset(made / "dataset", split) for split in ("train", "validation")]
    rows = rows_of(made)
    write_tfrecords(splits, tmp_path / "out", rows=rows, seed=3)
    train, validation = (open_google_bert(tmp_path / "out", s) for s in ("train", "validation"))
    assert (len(train), len(validation)) == (len(splits[0]), len(splits[1]))
    order = [e.input_ids.tolist() for e in splits[0].__getitems__(range(len(splits[0])))]
    places = [order.index(train[at].original().tolist()) for at in range(len(train))]
    assert abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.2  # shuffled
    held = {tuple(e.input_ids.tolist()) for e in splits[1].__getitems__(range(len(splits[1])))}
    assert {tuple(validation[at].original().tolist()) for at in range(len(validation))} == held
    write_tfrecords(splits, tmp_path / "again", rows=rows, seed=3)
    write_tfrecords(splits, tmp_path / "other", rows=rows, seed=4)
    once, again, other = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*tfrecord*")}
        for name in ("out", "again", "other")
    )
    assert once == again
    assert once.keys() == other.keys()
    assert once != other


def test_datasets_the_release_cannot_express_are_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path, kind="sop")
    dataset = open_dataset(tmp_path / "dataset", "train")
    with refuses("tfrecords.pairing", place=tmp_path / "dataset", found="sop"):
        write_tfrecords([dataset], tmp_path / "out", rows=rows_of(tmp_path), seed=3)
    assert not (tmp_path / "out").exists()
