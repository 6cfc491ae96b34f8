import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.google_bert.reader import open_google_bert
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


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input_mask": ROWS[3]["input_mask"][1:]}, "32 input_ids, 31 input_mask"),
        ({"input_mask": [0, *ROWS[3]["input_mask"][1:]]}, "input_mask with gaps"),
        ({"next_sentence_labels": [2]}, r"next_sentence_labels \[2\]"),
        ({"masked_lm_weights": [1] * SLOTS}, "masked_lm_weights as int64_list"),
        ({"masked_lm_weights": [0.0, 1.0, 0.0, 0.0, 0.0]}, "masked_lm_weights with gaps"),
        ({"segment_ids": [2, *ROWS[3]["segment_ids"][1:]]}, "segment_ids 2, allowed: 0 to 1"),
        ({"masked_lm_positions": [99, 0, 0, 0, 0]}, "masked_lm_positions 99, allowed: 0 to"),
        ({"input_ids": [2**40, *ROWS[3]["input_ids"][1:]]}, f"input_ids {2**40}, allowed: 0 to"),
    ],
)
def test_a_damaged_row_is_named_with_its_record(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "tf_examples.tfrecord"
    path.write_bytes(frame(example_bytes(ROWS[0])) + frame(example_bytes(ROWS[3] | change)))
    with pytest.raises(UserError, match=rf"^{path}: record 2: found (an )?{named}"):
        open_google_bert(path)
