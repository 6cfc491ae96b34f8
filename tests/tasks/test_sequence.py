"""Converts examples to rows and logits to records."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.rows.collate import assemble
from bert_jax.tasks.family import count_notes
from bert_jax.tasks.labels import Labelling
from bert_jax.tasks.sequence import SequenceSplit, TextExample
from bert_jax.text import Tokenizer
from tests.tasks.sequences import IDS, make_tokenizer, predict

ONE = Labelling("single_label", ("bad", "good"))
SEVERAL = Labelling("multi_label", ("a", "b", "c"))
NUMBER = Labelling("regression", ("similarity",))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def split_of(
    examples: list[TextExample], labelling: Labelling, tokenizer: Tokenizer, max_length: int = 8
) -> SequenceSplit:
    return SequenceSplit(examples, labelling=labelling, tokenizer=tokenizer, max_length=max_length)


def test_rows_are_cls_text_sep_pair_sep(tokenizer: Tokenizer) -> None:
    examples = [
        TextExample("a", "w1x w2", None, 1, 2),
        TextExample("b", "w3", "w4 w5", 0, 3),
        TextExample("c", "", "", None, 4),
        TextExample("d", " ".join(["w6"] * 9), "w7", 0, 5),
    ]
    split = split_of(examples, ONE, tokenizer)
    assert [" ".join(tokenizer.pieces(split.row(n).sequences[0])) for n in range(4)] == [
        "[CLS] w1 ##x w2 [SEP]",
        "[CLS] w3 [SEP] w4 w5 [SEP]",
        "[CLS] [SEP] [SEP]",
        "[CLS] w6 w6 w6 w6 [SEP] w7 [SEP]",
    ]
    assert [split.row(n).seconds for n in range(4)] == [(5,), (3,), (2,), (6,)]
    assert (split.examples, split.lengths.dtype) == (4, np.int32)
    too_long, empty = count_notes("dev", split.findings)
    assert too_long.startswith("dev: 1 of 4 texts are longer than 8 ")
    assert empty == "dev: 1 of 4 texts are empty (line 4)"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 12)), max_size=8))
def test_lengths_and_rows_equal_assembles(
    tokenizer: Tokenizer, sizes: list[tuple[int, int | None]]
) -> None:
    examples = [
        TextExample(n, "w1 " * first, None if second is None else "w2 " * second, None, n)
        for n, (first, second) in enumerate(sizes)
    ]
    split = split_of(examples, ONE, tokenizer, max_length=10)
    for number, (first, second) in enumerate(sizes):
        pair = None if second is None else [IDS["w2"]] * second
        made = assemble([IDS["w1"]] * first, pair, tokenizer, max_length=10)
        row = split.row(number)
        assert (list(row.sequences[0]), row.seconds) == (made.ids, (made.second,))
        assert len(made.ids) == split.lengths[number]


def test_records_of_one_label(tokenizer: Tokenizer) -> None:
    examples = [TextExample(7, "w1", "w2", 0, 2), TextExample(8, "w3", None, None, 3)]
    found = predict(split_of(examples, ONE, tokenizer), [[math.log(3), 0.0], [0.0, 0.0]])
    probabilities = found[0].pop("probabilities")
    assert probabilities == pytest.approx({"bad": 3 / 4, "good": 1 / 4})
    assert found == [
        {"id": 7, "text": "w1", "pair": "w2", "label": "bad", "prediction": "bad"},
        {
            "id": 8,
            "text": "w3",
            "label": None,
            "prediction": "bad",  # ties go to the first
            "probabilities": {"bad": 0.5, "good": 0.5},
        },
    ]
    assert json.loads(json.dumps(found)) == found


def test_records_of_several_labels_and_of_numbers(tokenizer: Tokenizer) -> None:
    examples = [
        TextExample(0, "w1", None, frozenset({2, 0}), 2),
        TextExample(1, "w2", None, None, 3),
    ]
    logits = [[math.log(3), 0.0, -math.log(3)], [-1.0, -2.0, -100.0]]
    found = predict(split_of(examples, SEVERAL, tokenizer), logits)
    assert [(r["label"], r["prediction"]) for r in found] == [(["a", "c"], ["a", "b"]), (None, [])]
    assert found[0]["probabilities"] == pytest.approx({"a": 3 / 4, "b": 1 / 2, "c": 1 / 4})
    strict = SEVERAL._replace(threshold=0.6)
    assert predict(split_of(examples, strict, tokenizer), logits)[0]["prediction"] == ["a"]
    assert json.loads(json.dumps(found)) == found
    examples = [TextExample(0, "w1", "w2", 2.0, 2), TextExample(1, "w1", "w2", None, 3)]
    found = predict(split_of(examples, NUMBER, tokenizer), [[2.5], [-1.0]])
    assert [(r["label"], r["prediction"]) for r in found] == [(2.0, 2.5), (None, -1.0)]
    assert "probabilities" not in found[0]
