import pickle
from typing import Any

import numpy as np
import pytest

from bert_jax.data.rng import stream
from bert_jax.data.rows.mask_selection import Segmenter
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.project import refuses

HOOK = "tests.data.chinese:cut"
PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    "我", "在", "北", "京", "大", "学", "生", "。", "play", "##ing", "北京",
]  # fmt: skip
TOKENIZER = WordPieceTokenizer(PIECES, lower_case=True)


def ids_of(text: str) -> np.ndarray:
    return np.array([PIECES.index(piece) for piece in text.split()])


def joined(text: str, *, hook: str = HOOK) -> str:
    ids = ids_of(text)
    continues = np.array([piece.startswith("##") for piece in PIECES])[ids]
    marks = Segmenter.create(hook, PIECES).join(ids, continues)
    return "".join("-" if mark else "|" for mark in marks)


def test_only_characters_of_a_word_are_joined() -> None:
    assert joined("[CLS] 我 在 北 京 大 学 play ##ing 大 学 生 。 [SEP]") == "||||-|-|-|-|||"
    assert joined("[CLS] play ##ing [SEP]") == "||-|"
    # No word crosses a separator or a full stop.
    assert joined("[CLS] 北 [SEP] 京 北 。 京 [SEP]") == "||||||||"
    # A piece of several characters (SentencePiece) joins the word of its first character.
    assert joined("我 北京 大 学") == "|||-"


@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_chinese_words_are_masked_whole_in_workers(unit: str) -> None:
    masking = MaskingSection.model_validate({"unit": unit, "segmenter": HOOK, "rate": 0.3})
    make = MaskingTransform.from_tokenizer(TOKENIZER, seq_length=32, masking=masking)
    make = pickle.loads(pickle.dumps(make))
    ids = ids_of("[CLS] 我 在 北 京 大 学 我 在 [SEP] 大 学 生 在 北 京 。 [SEP]")
    words = [(3, 4), (5, 6), (10, 11), (14, 15)]
    seen = set()
    for epoch in range(80):
        masked = make.masker(ids, stream(0, "mask", epoch))
        chosen = set(masked.positions.tolist())
        assert chosen
        for word in words:
            assert chosen.issuperset(word) or chosen.isdisjoint(word)
        seen |= chosen
    assert seen == set(range(len(ids))) - {0, 9, 17}


@pytest.mark.parametrize(
    ("hook", "key", "values"),
    [
        ("jieba", "spelling", {}),
        ("tests.data.no_such:cut", "import_failed", {"module": "tests.data.no_such"}),
        ("tests.data.chinese:cute", "unknown", {"hint": '; did you mean "cut"?'}),
        ("tests.data.chinese:LEXICON", "unknown", {"name": "LEXICON"}),
    ],
)
def test_a_hook_that_cannot_be_loaded_is_named_in_one_line(
    hook: str, key: str, values: dict[str, Any]
) -> None:
    place = "objective.masking.segmenter"
    with refuses(f"function.{key}", place=place, found=hook, **values):
        joined("北 京", hook=hook)


def test_a_hook_that_loses_text_is_named() -> None:
    hook = "tests.data.chinese:lose"
    place = "objective.masking.segmenter"
    with refuses("masking.segmenter", place=place, name=hook, found=["北"], text="北京"):
        joined("北 京", hook=hook)
