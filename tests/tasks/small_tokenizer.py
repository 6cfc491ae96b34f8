"""A tokenizer of a few words and all letters, for tests of rows."""

import string
from pathlib import Path

from bert_jax.text import Tokenizer, load_wordpiece
from bert_jax.text.vocabulary import SPECIAL_PIECES

WORDS = ["the", "dog", "river", "old", "mill", "saw", "a", "in", "##s", "##ing", "un", "##seen"]
LETTERS = sorted({*string.ascii_lowercase} - {"a"})


def small_tokenizer(directory: Path) -> Tokenizer:
    """`dogs` is two pieces, `zzz` three, `unseen` two; `-` one."""
    vocabulary = [
        *SPECIAL_PIECES,
        *WORDS,
        *LETTERS,
        *(f"##{letter}" for letter in "abcdefz"),
        "-",
        ".",
    ]
    file = directory / "vocab.txt"
    file.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return load_wordpiece(file, lower_case=True)
