import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bert_jax.tasks.squad.offsets import OffsetEncoder
from bert_jax.text.sentence_piece import SentencePieceTokenizer
from tests.tasks.squad_data import letters_tokenizer
from tests.text.test_sentence_piece import train as train_model

UNCASED, CASED = letters_tokenizer(), letters_tokenizer(lower_case=False)
# Composed and combining accents, letters that normalisation splits or merges, characters that
# tokenizers drop, white space, CJK and punctuation.
ALPHABET = "abZéÉe\u0301İß'(-. \n\t\u202f\u00a0\u200b\ufffd世界。"


def _slices(text: str, *, cased: bool = False) -> list[str]:
    found = OffsetEncoder(CASED if cased else UNCASED).encode(text)
    return [text[start:end] for start, end in zip(found.starts, found.ends, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the tower", ["the", "tower"]),
        ("Unaffable (1889)!", ["Un", "aff", "able", "(", "1", "8", "8", "9", ")", "!"]),
        ("Élan", ["É", "l", "a", "n"]),
        ("E\u0301lan", ["E\u0301", "l", "a", "n"]),
        ("世界a", ["世", "界", "a"]),
        ("中国的北京。", ["中", "国", "的", "北", "京", "。"]),  # 的 is unknown
        ("ﬁt", ["ﬁt"]),  # one unknown piece
        ("a\u200bb", ["a\u200b", "b"]),
        ("in\u00a0paris", ["in", "paris"]),
        ("(☃☃in)", ["(", "☃☃in", ")"]),
        ("a\ud800b c", ["a\ud800b", "c"]),  # lone surrogate, which no vocabulary contains
        ("ΣΣ.Σ", ["Σ", "Σ", ".", "Σ"]),  # `str.lower` turns the last Σ into ς
        ("☃-☃", ["☃", "-", "☃"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_piece_offsets_point_into_the_text(text: str, expected: list[str]) -> None:
    found = [piece.strip("\u200b") for piece in _slices(text)]
    assert found == [piece.strip("\u200b") for piece in expected]


@pytest.mark.parametrize("cased", [False, True])
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_span_of_whole_words_encodes_to_its_own_pieces(cased: bool, data: st.DataObject) -> None:
    tokenizer = CASED if cased else UNCASED
    text = data.draw(st.text(ALPHABET, max_size=30))
    found = OffsetEncoder(tokenizer).encode(text)
    assert found.ids == tokenizer.encode(text)
    assert (found.starts < found.ends).all()
    assert (np.diff(found.starts) >= 0).all()
    assert (np.diff(found.ends) >= 0).all()
    assert not len(found.ids) or (found.starts[0] >= 0 and found.ends[-1] <= len(text))
    if tokenizer.special.unk in found.ids:
        return
    begins = [i for i, piece in enumerate(found.ids) if not tokenizer.is_continuation[piece]]
    for first, behind in itertools.pairwise([*begins, len(found.ids)]):
        word = text[found.starts[first] : found.ends[behind - 1]]
        assert tokenizer.encode(word) == found.ids[first:behind]


def test_sentencepiece_offsets_point_into_the_text() -> None:
    tokenizer = SentencePieceTokenizer(train_model("unigram"), lower_case=True)
    text = "The  interpreter Évaluates (ﬁnal) expressions, don't"
    found = OffsetEncoder(tokenizer).encode(text)
    assert found.ids == tokenizer.encode(text)
    words: list[str] = []
    for piece, start, end in zip(
        tokenizer.pieces(found.ids), found.starts, found.ends, strict=True
    ):
        if piece.startswith("▁"):
            words.append("")
        words[-1] += text[start:end]
    assert words[:3] == ["The", "interpreter", "Évaluates"]
    assert words[4:] == ["expressions,", "don't"]
    assert len(found.ids) > len(words)
