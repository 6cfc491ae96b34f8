"""Packed rows have the same content as rows of one example."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.dataset.reader import Example
from bert_jax.data.rng import stream
from bert_jax.data.rows.collate import collate_tokens, pad_rows, stack_rows
from bert_jax.data.rows.masking_transform import MaskingTransform
from tests.data.memory_dataset import SEQ_LENGTH, SPECIAL, Batch, row_maker

settings = hypothesis.settings(deadline=None, max_examples=100)


PER_TOKEN = ("input_ids", "token_type_ids")


def make_example(length: int, *, label: int = 0, pair: bool = True) -> Example:
    ids = np.arange(100, 100 + length, dtype=np.uint16)
    ids[0], ids[-1] = SPECIAL.cls, SPECIAL.sep
    return Example(ids, length // 2 if pair else length, label)


def one_row(make: MaskingTransform, examples: list[Example], *, seed: int = 0) -> Batch:
    batch = make.batch([examples], [[stream(seed, k) for k in range(len(examples))]])
    return {name: array[0] for name, array in batch.items()}


@st.composite
def rows_of_examples(draw: st.DrawFn) -> list[Example]:
    examples, room = [], SEQ_LENGTH
    while room >= 3 and len(examples) < 6 and (not examples or draw(st.booleans())):
        length = draw(st.integers(3, room))
        examples.append(
            make_example(length, label=draw(st.integers(0, 1)), pair=draw(st.booleans()))
        )
        room -= length
    return examples


def unpack(row: Batch) -> list[dict[str, list]]:
    """Returns the content of each example in a row, without its position in the row."""
    found = []
    for k in range(int(row["segment_ids"].max())):
        places = np.flatnonzero(row["segment_ids"] == k + 1)
        start, end = int(places[0]), int(places[-1]) + 1
        at = row["masked_lm_positions"]
        mine = (row["masked_lm_weights"] > 0) & (at >= start) & (at < end)
        found.append(
            {
                "contiguous": places.tolist() == list(range(start, end)),
                **{name: row[name][start:end].tolist() for name in PER_TOKEN},
                "positions": (at[mine] - start).tolist(),
                "ids": row["masked_lm_ids"][mine].tolist(),
                "cls": int(row["cls_positions"][k]) - start,
                "label": int(row["next_sentence_labels"][k]),
                "weight": float(row["next_sentence_weights"][k]),
                "places": row.get("position_ids", np.arange(SEQ_LENGTH) - start)[
                    start:end
                ].tolist(),
            }
        )
    return found


@settings
@hypothesis.given(
    rows_of_examples(), st.integers(0, 2**32), st.sampled_from(["token", "whole_word", "span"])
)
def test_a_packed_example_equals_its_single_row(examples, seed, unit):
    single = row_maker(unit=unit)
    row = one_row(dataclasses.replace(single, max_examples=6), examples, seed=seed)
    alone = [single(example, stream(seed, k)) for k, example in enumerate(examples)]
    expected = [unpack(one)[0] for one in alone]
    assert unpack(row) == expected
    assert all(one["contiguous"] and one["cls"] == 0 for one in expected)
    assert [one["places"] for one in expected] == [
        list(range(len(example.input_ids))) for example in examples
    ]
    assert row["masked_lm_weights"].sum() == sum(one["masked_lm_weights"].sum() for one in alone)
    used = sum(len(example.input_ids) for example in examples)
    for name in (*PER_TOKEN, "segment_ids", "position_ids"):
        assert not row[name][used:].any()
    for name in ("cls_positions", "next_sentence_labels", "next_sentence_weights"):
        assert row[name].shape == (6,)
        assert not row[name][len(examples) :].any()


@settings
@hypothesis.given(
    st.integers(2, 10), st.floats(0.001, 0.9), st.none() | st.integers(1, 8), st.data()
)
def test_a_full_row_has_room_for_every_prediction(max_examples, rate, max_predictions, data):
    single = row_maker(rate=rate, max_predictions=max_predictions)
    cuts = data.draw(st.lists(st.integers(3, SEQ_LENGTH), min_size=1, max_size=max_examples))
    lengths = [n for n, end in zip(cuts, np.cumsum(cuts), strict=True) if end <= SEQ_LENGTH]
    examples = [make_example(length) for length in lengths]
    row = one_row(dataclasses.replace(single, max_examples=max_examples), examples)
    alone = [single(example, stream(0, k)) for k, example in enumerate(examples)]
    assert row["masked_lm_weights"].sum() == sum(one["masked_lm_weights"].sum() for one in alone)


@pytest.mark.parametrize("lengths", [[20, 13], [4] * 5])
def test_examples_beyond_the_row_are_an_error(lengths):
    examples = [make_example(length) for length in lengths]
    with pytest.raises(ValueError, match=r"found \[\d+, \d+, \d\], .* room for \[32, 8, 4\]"):
        one_row(dataclasses.replace(row_maker(), max_examples=4), examples)


PAIRS = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=7).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids)))
    ),
    max_size=5,
)


def test_rows_are_padded_and_missing_rows_filled() -> None:
    padded = pad_rows([[7, 8], np.array([9])], batch_size=3, length=4, fill=-100)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[7, 8, -100, -100], [9, -100, -100, -100], [-100] * 4]


@given(PAIRS, st.integers(0, 3))
def test_tokens_types_and_segments_of_each_sequence(
    pairs: list[tuple[list[int], int]], missing: int
) -> None:
    size, length, pad = len(pairs) + missing, 8, 11
    sequences, seconds = [ids for ids, _ in pairs], [second for _, second in pairs]
    batch = collate_tokens(sequences, seconds, batch_size=size, length=length, pad_id=pad)
    assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    for number, (ids, second) in enumerate([*pairs, *[([], 0)] * missing]):
        rest = length - len(ids)
        assert batch["input_ids"][number].tolist() == ids + [pad] * rest
        types = [0] * second + [1] * (len(ids) - second) + [0] * rest
        assert batch["token_type_ids"][number].tolist() == types
        assert batch["segment_ids"][number].tolist() == [1] * len(ids) + [0] * rest


def test_a_batch_without_rows_has_the_given_shapes() -> None:
    row = {"input_ids": np.array([5, 6], np.int32), "weight": np.ones(1, np.float32)}
    batch = stack_rows([], batch_size=2, like=row)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "input_ids": ((2, 2), "int32"),
        "weight": ((2, 1), "float32"),
    }
    assert not any(value.any() for value in batch.values())
