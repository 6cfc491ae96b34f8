"""New words of byte-level BPE: in every script with words, and readable in decoded text."""

from pathlib import Path

import pytest

from bert_jax.pipelines.vocabulary.extend import choose_words, extended
from bert_jax.text import load_tokenizer
from tests.text.library_tokenizers import saved

WORDS = [
    *("données", "größe", "nghiên", "přístroj", "đem", "İlaçlar"),  # letters that are also bytes
    *("φάρμακο", "лекарство", "წამალი", "דגֵשׁ", "كِتَابٌ", "의약품", "インスリン"),
    *("हिन्दी", "ওষুধটি", "மருந்து", "ยาที่", "ថ្នាំ", "ဆေးဝါး"),  # they end with a mark
    *("می\u200cخواهم", "ක්\u200dරියා"),  # joiners
]
OTHERS = ["药物", "covid19", "_x", "x", "\u200c\u200c", "3.14"]


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_words_of_all_scripts_are_added_and_decoded(kind: str, tmp_path: Path) -> None:
    old = load_tokenizer(saved(kind, tmp_path))
    lines = [f"the {word}, ({word})" for word in [*WORDS, *OTHERS] for _ in range(5)]
    chosen = choose_words(old, lines, count=100)
    assert {new.word for new in chosen} == {*WORDS}
    assert all(new.occurrences == 10 for new in chosen)
    tokenizer = extended(old, chosen)
    for word in WORDS:
        text = f"the {word} and {word}"
        ids = tokenizer.encode(text)
        assert sum(number >= old.vocab_size for number in ids) == 2
        assert tokenizer.decode(ids) == text
        assert old.decode(old.encode(text)) == text
