import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.google_bert.reader import GoogleBertDataset, open_google_bert
from bert_jax.data.google_bert.schema import FEATURES, decode_row, encode_row
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.loader.loader import Loader, evaluation_batches
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.static_masks import StaticExample, StaticMaskTransform
from bert_jax.errors import UserError
from tests.data.google_bert_writer import (
    LENGTH,
    SLOTS,
    example_bytes,
    random_rows,
    write_release,
)

ROWS = random_rows(23)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files of unequal size."""
    for at, (start, stop) in enumerate([(0, 10), (10, 11), (11, 23)]):
        write_release(tmp_path / f"tf_examples.tfrecord-{at}", ROWS[start:stop])
    return tmp_path


def row_maker(**changes: Any) -> StaticMaskTransform:
    values = {"seq_length": LENGTH, "max_predictions": SLOTS, "vocab_size": 200, "pad_id": 0}
    return StaticMaskTransform(**(values | changes))


def row_of(transform: StaticMaskTransform, example: StaticExample) -> dict[str, np.ndarray]:
    batch = transform.batch([[example]], [[np.random.default_rng(0)]])
    return {name: array[0] for name, array in batch.items()}


def google_form(row: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """A row of the loader with google-research/bert's names."""
    named = row | {"input_mask": row["segment_ids"], "segment_ids": row["token_type_ids"]}
    return {name: named[name].tolist() for name in FEATURES}


def test_rows_are_those_that_google_research_bert_wrote(files: Path) -> None:
    dataset = open_google_bert(files)
    make = row_maker()
    found = [google_form(row_of(make, example)) for example in dataset.__getitems__(range(23))]
    assert found == ROWS
    assert dataset.lengths.tolist() == [sum(row["input_mask"]) for row in ROWS]


def test_writing_a_row_again_gives_what_tensorflow_reads_as_the_same(files: Path) -> None:
    make = row_maker()
    for row in ROWS:
        example, slots = decode_row(example_bytes(row))
        again = encode_row(row_of(make, example))
        assert slots == SLOTS
        assert google_form(row_of(make, decode_row(again)[0])) == row


def test_statistics_are_those_of_the_records(files: Path) -> None:
    summary = open_google_bert(files).summary
    originals = []
    for row in ROWS:
        ids = np.array(row["input_ids"])
        ids[row["masked_lm_positions"][:2]] = row["masked_lm_ids"][:2]
        special = [0, row["segment_ids"].index(1) - 1, sum(row["input_mask"]) - 1]
        originals += np.delete(ids[: sum(row["input_mask"])], special).tolist()
    shares = np.unique(originals, return_counts=True)[1] / len(originals)
    assert summary.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-12)
    assert (summary.slots, summary.most_predictions) == (SLOTS, 2)
    assert summary.tokens == sum(sum(row["input_mask"]) for row in ROWS)
    assert [file.records for file in summary.files] == [10, 1, 12]


def test_the_index_is_made_once_and_again_when_a_file_changes(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_google_bert(files)
    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.data.google_bert.index.scan_records", None)
        again = open_google_bert(files)
        assert again.fingerprint == first.fingerprint
        assert pickle.loads(pickle.dumps(again))[20].input_ids.tolist() == (
            first[20].input_ids.tolist()
        )
    write_release(files / "tf_examples.tfrecord-1", random_rows(1, seed=9))
    changed = open_google_bert(files)
    assert changed.fingerprint != first.fingerprint
    assert len(changed) == 23


def test_the_loader_walks_every_record_once_an_epoch_with_its_masks(files: Path) -> None:
    loader = Loader(
        open_google_bert(files),
        row_maker(),
        batch_size=23,
        seed=1,
        section=LoaderSection(),
    )
    with loader.batches(first_step=0) as batches:
        epochs = [next(batches) for _ in range(2)]
    for batch in epochs:
        rows = [google_form({n: v[at] for n, v in batch.items()}) for at in range(23)]
        assert sorted(rows, key=str) == sorted(ROWS, key=str)
        assert rows != ROWS
    assert not np.array_equal(epochs[0]["input_ids"], epochs[1]["input_ids"])


def test_evaluation_keeps_the_stored_masks(files: Path) -> None:
    batches = evaluation_batches(
        open_google_bert(files),
        row_maker(),
        batch_size=8,
        seed=5,
        limit=None,
    )
    rows = [
        google_form({name: value[at] for name, value in batch.items()})
        for batch in batches
        for at in range(8)
    ]
    assert rows[:23] == ROWS
    assert sum(rows[23]["masked_lm_weights"]) == 0


def test_what_is_no_such_row_is_named_with_its_record(files: Path) -> None:
    path = files / "tf_examples.tfrecord-1"

    def said(content: bytes) -> str:
        path.write_bytes(frame(example_bytes(ROWS[0])) + frame(content))
        with pytest.raises(UserError) as caught:
            open_google_bert(path)
        prefix = f"{path}: record 2: "
        assert str(caught.value).startswith(prefix)
        return str(caught.value).removeprefix(prefix)

    row = ROWS[3]
    assert said(b"\xff\xff") == "found no tf.train.Example, allowed: one in each record"
    lacking = {name: row[name] for name in FEATURES if name != "masked_lm_ids"}
    assert said(example_bytes(lacking)).startswith("found no feature masked_lm_ids (but ")
    assert said(example_bytes(row | {"input_mask": row["input_mask"][1:]})) == (
        "found 32 input_ids, 31 input_mask, 32 segment_ids, allowed: as many of each"
    )
    assert said(example_bytes(row | {"next_sentence_labels": [2]})) == (
        "found next_sentence_labels [2], allowed: one, 0 or 1"
    )
    assert said(example_bytes(row | {"masked_lm_weights": [1] * SLOTS})) == (
        "found masked_lm_weights as int64_list, allowed: float_list"
    )
    assert said(example_bytes(row | {"masked_lm_weights": [0.0, 1.0, 0.0, 0.0, 0.0]})) == (
        "found masked_lm_weights with gaps, allowed: above 0, then 0"
    )
    assert said(example_bytes(row | {"segment_ids": [2, *row["segment_ids"][1:]]})) == (
        "found segment_ids 2, allowed: 0 to 1"
    )
    length = sum(row["input_mask"])
    assert said(example_bytes(row | {"masked_lm_positions": [length, 0, 0, 0, 0]})) == (
        f"found masked_lm_positions {length}, allowed: 0 to {length - 1}"
    )
    assert said(example_bytes(row | {"input_mask": [0, *row["input_mask"][1:]]})).startswith(
        "found an input_mask with gaps"
    )
    assert said(example_bytes(row | {"input_ids": [-1, *row["input_ids"][1:]]})).startswith(
        "found input_ids -1, allowed: 0 to "
    )
    assert said(example_bytes(row | {"input_ids": [2**40, *row["input_ids"][1:]]})).startswith(
        f"found input_ids {2**40}, allowed: 0 to {2**31 - 1}"
    )


def test_rows_that_do_not_fit_the_run_are_refused(files: Path) -> None:
    dataset: GoogleBertDataset = open_google_bert(files)
    with pytest.raises(UserError, match=r"max_predictions: found 1, but .* has 2 predictions"):
        row_of(row_maker(max_predictions=1), dataset[0])
    with pytest.raises(UserError, match=r"found token id \d+, allowed: 0 to 5; it was made with"):
        row_of(row_maker(vocab_size=6), dataset[0])
    with pytest.raises(UserError, match="packing: found max_examples 4"):
        row_maker().packed(4)
    with pytest.raises(UserError, match=r"seq_length: found 8, but the dataset's longest example"):
        Loader(
            dataset,
            row_maker(seq_length=8),
            batch_size=2,
            seed=0,
            section=LoaderSection(),
        )


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def delimited(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def unpacked_bytes(row: dict[str, Any]) -> bytes:
    """A row as `tf.train.Example`, each whole number with a tag of its own."""
    entries = b""
    for name, values in row.items():
        if name == "masked_lm_weights":
            feature = delimited(0x12, delimited(0x0A, np.array(values, "<f4").tobytes()))
        else:
            feature = delimited(0x1A, b"".join(b"\x08" + varint(value) for value in values))
        entries += delimited(0x0A, delimited(0x0A, name.encode()) + delimited(0x12, feature))
    return delimited(0x0A, entries)


def test_numbers_that_are_not_packed_are_read_all_the_same() -> None:
    record = unpacked_bytes(ROWS[1])
    (ours, slots), (theirs, _) = decode_row(record), decode_row(example_bytes(ROWS[1]))
    assert slots == SLOTS
    for name in theirs._fields:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
