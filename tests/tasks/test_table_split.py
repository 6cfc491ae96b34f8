"""A dev set made of a training set."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks.sequence import TextExample
from bert_jax.tasks.table.family import hold_out

Row = tuple[int, str, str | None]
ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abcdefgh"), st.none() | st.sampled_from("xyz")),
    max_size=40,
)


def examples_of(rows: list[Row]) -> list[TextExample]:
    return [
        TextExample(number, text, pair, label, number)
        for number, (label, text, pair) in enumerate(rows)
    ]


def contents(examples: list[TextExample]) -> Counter[Row]:
    return Counter((int(e.target or 0), e.text, e.pair) for e in examples)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(ROWS, st.floats(0.05, 0.9), st.randoms(use_true_random=False))
def test_what_is_held_out_does_not_depend_on_the_order(
    rows: list[Row], fraction: float, shuffler: random.Random
) -> None:
    train, dev = hold_out(examples_of(rows), fraction=fraction, seed=5)
    other = rows.copy()
    shuffler.shuffle(other)
    other_train, other_dev = hold_out(examples_of(other), fraction=fraction, seed=5)
    assert contents(train) == contents(other_train)
    assert contents(dev) == contents(other_dev)


@settings(deadline=None, max_examples=100)
@given(ROWS, st.floats(0.05, 0.9))
def test_every_example_is_in_one_part_and_equal_ones_are_together(
    rows: list[Row], fraction: float
) -> None:
    train, dev = hold_out(examples_of(rows), fraction=fraction, seed=0)
    assert sorted(example.id for example in (*train, *dev)) == list(range(len(rows)))
    for part in (train, dev):
        assert [example.id for example in part] == sorted(example.id for example in part)
    assert not contents(train).keys() & contents(dev).keys()
    # Every label stays in training, and is in both where it has two different texts.
    for label in {label for label, *_ in rows}:
        different = {(text, pair) for of, text, pair in rows if of == label}
        assert label in {example.target for example in train}
        assert (label in {example.target for example in dev}) == (len(different) > 1)


def test_each_label_gives_its_share() -> None:
    rows: list[Row] = [(number % 4 == 0, f"text {number}", None) for number in range(400)]
    train, dev = hold_out(examples_of(rows), fraction=0.1, seed=0)
    assert Counter(bool(e.target) for e in train) == {False: 270, True: 90}
    assert Counter(bool(e.target) for e in dev) == {False: 30, True: 10}
