from bert_jax.data.rng import digest128, stream


def test_random_numbers_equal_the_recorded_ones() -> None:
    # These numbers must not change: they determine every dataset and every mask.
    assert digest128(12345, "pairing", 0) == 0x45DECB53148ED225B2503AEBBA0913CD
    assert stream(12345, "pairing", 0).random(2).tolist() == [
        0.31100836285792943,
        0.15724009083383994,
    ]


def test_different_keys_give_different_streams() -> None:
    keys = [(1, "ab"), (1, "a", "b"), (1, "1"), (1, 1), (11,), (1, "a", "b", ""), (-1, 1)]
    assert len({digest128(*key) for key in keys}) == len(keys)
