import numpy as np
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


def test_a_batch_without_rows_has_the_shapes_of_the_row_that_is_named() -> None:
    row = {"input_ids": np.array([5, 6], np.int32), "weight": np.ones(1, np.float32)}
    batch = stack_rows([], batch_size=2, like=row)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "input_ids": ((2, 2), "int32"),
        "weight": ((2, 1), "float32"),
    }
    assert not any(value.any() for value in batch.values())
