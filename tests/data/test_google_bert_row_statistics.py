"""Statistics of many rows at once equal those of the rows one by one, or there are none."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.google_bert.schema import decode_row, row_statistics
from tests.data.google_bert_writer import LENGTH, SLOTS, example_bytes, random_rows

Row = dict[str, Any]
ROWS = random_rows(5)
MASK = ROWS[2]["input_mask"]
TOKENS = sum(MASK)


def check(rows: list[Row]) -> None:
    """The statistics are those that `decode_row` gives."""
    records = [example_bytes(row) for row in rows]
    found = row_statistics(records)
    assert found is not None
    examples, slots = zip(*map(decode_row, records), strict=True)
    originals = np.concatenate([np.delete(e.original(), e.special_positions) for e in examples])
    assert found.lengths.tolist() == [len(e.input_ids) for e in examples]
    assert found.slots == max(slots)
    assert found.most_predictions == max(len(e.ids) for e in examples)
    assert found.highest_id == max(int(e.input_ids.max()) for e in examples)
    assert sorted(found.originals.tolist()) == sorted(originals.tolist())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([100, 200, 70_000]))
def test_rows_together_are_as_one_by_one(seed: int, count: int, vocab: int) -> None:
    check(random_rows(count, seed=seed, vocab=vocab))


def test_rows_of_one_span_or_of_another_length_are_as_one_by_one() -> None:
    longer = {
        name: values if name == "next_sentence_labels" else [*values, type(values[0])(0)]
        for name, values in ROWS[1].items()
    }
    one_span = ROWS[2] | {"segment_ids": [0] * LENGTH}
    unmasked = ROWS[3] | {"masked_lm_weights": [1.0] + [0.0] * (SLOTS - 1)}
    check([ROWS[0], longer, one_span, unmasked])


DAMAGED: list[Row] = [
    {"input_mask": MASK[1:]},
    {"input_mask": [0, *MASK[1:]]},
    {"input_mask": [0] * LENGTH},
    {"input_mask": [2, *MASK[1:]]},
    {"input_ids": [-1, *ROWS[2]["input_ids"][1:]]},
    {"input_ids": [2**40, *ROWS[2]["input_ids"][1:]]},
    {"segment_ids": [2, *ROWS[2]["segment_ids"][1:]]},
    {"masked_lm_positions": [TOKENS, *[0] * (SLOTS - 1)]},
    {"masked_lm_ids": [-5, *[0] * (SLOTS - 1)]},
    {"masked_lm_weights": [0.0, 1.0, *[0.0] * (SLOTS - 2)]},
    {"masked_lm_weights": [1] * SLOTS},
    {"next_sentence_labels": [2]},
    {"next_sentence_labels": [0, 1]},
]


@pytest.mark.parametrize("change", DAMAGED)
def test_a_row_that_is_damaged_is_left_to_be_named(change: Row) -> None:
    records = [example_bytes(row) for row in (ROWS[0], ROWS[2] | change, ROWS[4])]
    assert row_statistics(records) is None
    with pytest.raises(ValueError, match="allowed: "):
        decode_row(records[1])
    assert row_statistics([records[0], b"\xff\xff"]) is None


@pytest.mark.parametrize(
    "change", [{"segment_ids": [1, *[0] * (LENGTH - 1)]}, {"masked_lm_weights": [0.0] * SLOTS}]
)
def test_a_row_in_order_but_unlike_others_is_read_by_itself(change: Row) -> None:
    record = example_bytes(ROWS[2] | change)
    assert row_statistics([example_bytes(ROWS[0]), record]) is None
    assert len(decode_row(record)[0].input_ids) == TOKENS


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def delimited(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def unpacked_bytes(row: Row) -> bytes:
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
    assert row_statistics([record]) is None
    (ours, slots), (theirs, _) = decode_row(record), decode_row(example_bytes(ROWS[1]))
    assert slots == SLOTS
    for name in theirs._fields:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
