import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.rows.collate import collate_tokens, pad_rows, stack_rows

PAIRS = st.lists(
    st.lists(st.integers(1, 9), min_size=1, max_size=7).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids)))
    ),
    max_size=5,
)


def test_rows_of_different_lengths_are_padded_and_missing_rows_filled() -> None:
    padded = pad_rows([[7, 8], np.array([9])], batch_size=3, length=4, fill=-100)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[7, 8, -100, -100], [9, -100, -100, -100], [-100] * 4]


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        pad_rows([[1], [2]], batch_size=1, length=4)
    with pytest.raises(ValueError, match="broadcast"):
        pad_rows([[1, 2, 3]], batch_size=1, length=2)


@given(PAIRS, st.integers(0, 3))
def test_tokens_types_and_segments_of_each_sequence(
    pairs: list[tuple[list[int], int]], missing: int
) -> None:
    size, length, pad = len(pairs) + missing, 8, 11
    sequences, seconds = [ids for ids, _ in pairs], [second for _, second in pairs]
    batch = collate_tokens(sequences, seconds, batch_size=size, length=length, pad_id=pad)
    assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    expected = [
        (
            ids + [pad] * (length - len(ids)),
            [0] * second + [1] * (len(ids) - second) + [0] * (length - len(ids)),
            [1] * len(ids) + [0] * (length - len(ids)),
        )
        for ids, second in [*pairs, *[([], 0)] * missing]
    ]
    for number, (ids, types, segments) in enumerate(expected):
        assert batch["input_ids"][number].tolist() == ids
        assert batch["token_type_ids"][number].tolist() == types
        assert batch["segment_ids"][number].tolist() == segments


def test_without_second_spans_every_token_has_type_0() -> None:
    batch = collate_tokens([[1, 2, 3]], batch_size=1, length=4, pad_id=0)
    assert not batch["token_type_ids"].any()


def test_missing_rows_of_a_stack_are_zeros() -> None:
    row = {"input_ids": np.array([5, 6], np.int32), "weight": np.ones(1, np.float32)}
    batch = stack_rows([row], batch_size=2)
    assert batch["input_ids"].tolist() == [[5, 6], [0, 0]]
    assert batch["weight"].tolist() == [[1.0], [0.0]]


def test_a_batch_without_rows_has_the_shapes_of_the_row_that_is_named() -> None:
    row = {"input_ids": np.array([5, 6], np.int32), "weight": np.ones(1, np.float32)}
    batch = stack_rows([], batch_size=2, like=row)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "input_ids": ((2, 2), "int32"),
        "weight": ((2, 1), "float32"),
    }
    assert not any(value.any() for value in batch.values())
