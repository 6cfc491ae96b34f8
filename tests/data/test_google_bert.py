import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.data.google_bert.schema import FEATURES, decode_rows, encode_row
from bert_jax.data.google_bert.tf_example import Int64List, decode_lists
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.loader.loader import Loader, evaluation_batches
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.masking_transform import StaticExample, StaticMaskTransform
from tests.data.google_bert_writer import (
    LENGTH,
    SLOTS,
    example_bytes,
    random_rows,
    write_release,
)
from tests.project import refuses

ROWS = random_rows(23)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files of unequal size."""
    for at, (start, stop) in enumerate([(0, 10), (10, 11), (11, 23)]):
        write_release(tmp_path / f"tf_examples.tfrecord-{at}", ROWS[start:stop])
    return tmp_path


def row_maker() -> StaticMaskTransform:
    return StaticMaskTransform(LENGTH, max_predictions=SLOTS, vocab_size=200, pad_id=0)


def row_of(transform: StaticMaskTransform, example: StaticExample) -> dict[str, np.ndarray]:
    batch = transform.batch([[example]], [[np.random.default_rng(0)]])
    return {name: array[0] for name, array in batch.items()}


def google_form(row: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """Returns a row of the loader with google-research/bert's names."""
    named = row | {"input_mask": row["segment_ids"], "segment_ids": row["token_type_ids"]}
    return {name: named[name].tolist() for name in FEATURES}


def test_rows_equal_google_research_berts(files: Path) -> None:
    dataset = open_google_bert(files)
    make = row_maker()
    found = [google_form(row_of(make, example)) for example in dataset.__getitems__(range(23))]
    assert found == ROWS
    assert dataset.lengths.tolist() == [sum(row["input_mask"]) for row in ROWS]


def decode(*records: bytes) -> list[StaticExample]:
    found = decode_rows(records, [f"f: record {at}" for at in range(1, 1 + len(records))])
    return [example for rows in found for example in rows.examples()]


def test_rewritten_rows_are_equal_for_tensorflow(files: Path) -> None:
    make = row_maker()
    for row in ROWS:
        (example,) = decode(example_bytes(row))
        (again,) = decode(encode_row(row_of(make, example)))
        assert google_form(row_of(make, again)) == row


def test_rows_of_other_sizes_or_one_span_are_read() -> None:
    longer = {
        name: values if name == "next_sentence_labels" else [*values, type(values[0])(0)]
        for name, values in ROWS[1].items()
    }
    one_span = ROWS[2] | {"segment_ids": [0] * LENGTH}
    unmasked = ROWS[3] | {"masked_lm_weights": [0.0] * SLOTS}
    records = [example_bytes(row) for row in (ROWS[0], longer, one_span, unmasked)]
    assert len(decode_rows(records, [""] * 4)) == 4
    for found, alone in zip(decode(*records), map(decode, records), strict=True):
        np.testing.assert_equal(found._asdict(), alone[0]._asdict())


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def delimited(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def test_unpacked_numbers_are_read() -> None:
    entries = b""
    for name, values in ROWS[1].items():
        if name == "masked_lm_weights":
            feature = delimited(0x12, delimited(0x0A, np.array(values, "<f4").tobytes()))
        else:  # unpacked: each value has its own tag
            feature = delimited(0x1A, b"".join(b"\x08" + varint(value) for value in values))
        entries += delimited(0x0A, delimited(0x0A, name.encode()) + delimited(0x12, feature))
    (ours,), (theirs,) = decode(delimited(0x0A, entries)), decode(example_bytes(ROWS[1]))
    np.testing.assert_equal(ours._asdict(), theirs._asdict())


NUMBERS = st.lists(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40_000), min_size=1, max_size=15),
    min_size=1,
    max_size=5,
)


@given(NUMBERS)
def test_varints_equal_protobufs(lists: list[list[int]]) -> None:
    packed = []
    for numbers in lists:
        spelled = Int64List(value=numbers).SerializeToString()
        packed.append(spelled[2 if len(spelled) < 130 else 3 :])  # without the tag and the length
    flat, counts = decode_lists(packed)
    assert flat.tolist() == [number for numbers in lists for number in numbers]
    assert counts == list(map(len, lists))


@pytest.mark.parametrize("packed", [[b"\x01\x80"], [b"\x80", b"\x01"], [b"\x80" * 10 + b"\x01"]])
def test_invalid_numbers_are_errors(packed: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"truncated|11 bytes, allowed: at most 10"):
        decode_lists(packed)


def test_statistics_equal_the_records(files: Path) -> None:
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
    assert summary.highest_id == max(max(row["input_ids"] + row["masked_lm_ids"]) for row in ROWS)
    assert summary.tokens == sum(sum(row["input_mask"]) for row in ROWS)
    assert [file.records for file in summary.files] == [10, 1, 12]


def test_the_index_is_remade_only_if_a_file_changes(
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


def test_the_loader_reads_every_record_once_per_epoch(files: Path) -> None:
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
    ("feature", "wrong", "key", "found"),
    [
        ("input_mask", ROWS[3]["input_mask"][1:], "tfrecord.sizes", None),
        ("input_mask", [0, *ROWS[3]["input_mask"][1:]], "tfrecord.input_mask", None),
        ("input_mask", [0] * LENGTH, "tfrecord.input_mask", None),
        ("input_mask", [2, *ROWS[3]["input_mask"][1:]], "tfrecord.input_mask", None),
        ("next_sentence_labels", [2], "tfrecord.label", [2]),
        ("next_sentence_labels", [0, 1], "tfrecord.label", [0, 1]),
        ("masked_lm_weights", [1] * SLOTS, "tfrecord.feature_kind", "int64_list"),
        ("masked_lm_weights", [0.0, 1.0, 0.0, 0.0, 0.0], "tfrecord.weights", None),
        ("segment_ids", [2, *ROWS[3]["segment_ids"][1:]], "tfrecord.number", 2),
        ("masked_lm_positions", [99, 0, 0, 0, 0], "tfrecord.number", 99),
        ("masked_lm_ids", [-5, 0, 0, 0, 0], "tfrecord.number", -5),
        ("input_ids", [2**40, *ROWS[3]["input_ids"][1:]], "tfrecord.number", 2**40),
    ],
)
def test_a_damaged_row_is_named_with_its_record(
    tmp_path: Path, feature: str, wrong: list[float], key: str, found: object
) -> None:
    path = tmp_path / "tf_examples.tfrecord"
    damaged = ROWS[3] | {feature: wrong}
    path.write_bytes(frame(example_bytes(ROWS[0])) + frame(example_bytes(damaged)))
    if key == "tfrecord.sizes":
        values: dict[str, Any] = {"found": ["32 input_ids", "31 input_mask", "32 segment_ids"]}
    else:
        values = {} if found is None else {"name": feature, "found": found}
    with refuses(key, place=f"{path}: record 2", **values):
        open_google_bert(path)
