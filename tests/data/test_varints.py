import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.google_bert.tf_example import Int64List, decode_lists, decode_varints

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40_000), max_size=30)


def packed(numbers: list[int]) -> bytes:
    """As protobuf packs them: what follows a tag and a length, which are varints themselves."""
    spelled = Int64List(value=numbers).SerializeToString()
    bytes_of_length = 1 if len(spelled) < 130 else 2
    return spelled[1 + bytes_of_length :]


@given(NUMBERS)
def test_numbers_are_those_that_protobuf_packed(numbers: list[int]) -> None:
    assert decode_varints(packed(numbers) if numbers else b"").tolist() == numbers


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_several_lists_stay_apart(lists: list[list[int]]) -> None:
    flat, counts = decode_lists([packed(numbers) for numbers in lists if numbers])
    assert flat.tolist() == [number for numbers in lists for number in numbers]
    assert counts == [len(numbers) for numbers in lists if numbers]


def test_bytes_that_are_no_numbers_are_errors() -> None:
    with pytest.raises(ValueError, match="truncated"):
        decode_varints(b"\x01\x80")
    with pytest.raises(ValueError, match="truncated"):  # or it would take the next list's bytes
        decode_lists([b"\x80", b"\x01"])
    with pytest.raises(ValueError, match="11 bytes, allowed: at most 10"):
        decode_varints(b"\x80" * 10 + b"\x01")
