"""The masks of words reach their budget in scripts without spaces."""

import random
from pathlib import Path

import numpy as np
import pytest
from transformers import XLMRobertaTokenizer

from bert_jax.data.loader.mask_share import MaskShare
from bert_jax.data.rows.masking import MaskingSection, TokenMasker
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentence_piece import SentencePieceTokenizer
from tests.text.library_tokenizers import saved

SYLLABLES = {
    "han": "中 国 人 民 大 学 生 我 在 北 京 是 的 去 来 看",
    "kana": "あ い か き さ し す タ ワ ー ン プ リ ョ キ ャ",
    "thai": "กา ไป มี ที่ ให้ คน ดี ว่า เป็น น้ำ บ้าน รัก ชื่อ ปี วัน ใน",
    "lao": "ມາ ໄປ ມີ ທີ່ ໃຫ້ ຄົນ ດີ ວ່າ ເປັນ ນ້ຳ ບ້ານ ຮັກ ຊື່ ປີ ວັນ ໃນ",
    "khmer": "កា ទៅ មាន ដែល ឱ្យ មនុស្ស ល្អ ថា ជា ទឹក ផ្ទះ ស្រ ឈ្មោះ ឆ្នាំ ថ្ងៃ ក្នុង",
    "burmese": "ကာ သွား ရှိ သော ပေး လူ ကောင်း ဟု ဖြစ် ရေ အိမ် ချစ် နာမည် နှစ် နေ့ တွင်",
    "emoji": "🙂 🎉 🔥 😀 😁 👍 🚀 🌍 🐶 🍕 🎈 🏠 💡 📚 🧠 🦊",
}
TRAINED = {"wordpiece": 400, "unigram": 200, "bpe": 200, "byte_bpe": 450}


def clauses(script: str, count: int) -> list[str]:
    """Returns clauses of 30 syllables without spaces."""
    rng = random.Random(script)
    return ["".join(rng.choices(SYLLABLES[script].split(), k=30)) for _ in range(count)]


def trained(kind: str, root: Path) -> Tokenizer:
    lines = [line for script in SYLLABLES for line in clauses(script, 40)]
    (root / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    values = {"input": [str(root / "text.txt")], "output": str(root / kind), "unused_slots": 0}
    values |= {"size": TRAINED[kind], "algorithm": kind, "lower_case": False}
    return train_vocab(VocabSection.model_validate(values))


@pytest.fixture(scope="module", params=[*TRAINED, "roberta", "xlm_roberta"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    root, kind = tmp_path_factory.mktemp("tokenizer"), request.param
    if kind in TRAINED:
        return trained(kind, root)
    if kind == "roberta":  # all letters of these scripts are divided into bytes
        return load_tokenizer(saved(kind, root / kind))
    unigram = trained("unigram", root)
    assert isinstance(unigram, SentencePieceTokenizer)
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*special, *unigram.scores().items(), ("<mask>", 0.0)]
    XLMRobertaTokenizer(vocab=vocabulary).save_pretrained(root / kind)
    return load_tokenizer(root / kind)


@pytest.mark.parametrize("unit", ["whole_word", "ngram", "span"])
def test_masks_reach_their_budget_in_scripts_without_spaces(
    unit: str, tokenizer: Tokenizer
) -> None:
    special = tokenizer.special
    masking = MaskingSection.model_validate({"unit": unit})
    masker = TokenMasker.from_tokenizer(tokenizer, masking=masking, max_predictions=19)
    for script in SYLLABLES:
        if tokenizer.ends_word is None and script != "han":
            continue  # WordPiece divides only ideographs into words
        ids = [each for line in tokenizer.encode_batch(clauses(script, 60)) for each in line]
        rows = [
            np.array([special.cls, *ids[at : at + 126], special.sep], np.uint16)
            for at in range(0, len(ids) - 126, 126)
        ]
        found = MaskShare.of(rows, masker, seed=3)
        assert found.examples == len(rows) > 4
        assert found.without == 0
        assert found.predictions >= 0.93 * found.wanted, script
        assert not found.low
