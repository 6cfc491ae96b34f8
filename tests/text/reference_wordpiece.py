"""Reference implementation of the 2018 release's tokenization.

It follows google-research/bert ``tokenization.py`` step by step and character by character, with
Python's ``unicodedata``. Tests compare the package's tokenizer with it.
"""

import unicodedata
from collections.abc import Collection

CJK_BLOCKS = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]
ASCII_MARKS = [(33, 47), (58, 64), (91, 96), (123, 126)]


def _within(char: str, blocks: list[tuple[int, int]]) -> bool:
    return any(low <= ord(char) <= high for low, high in blocks)


def clean(text: str) -> str:
    kept = ""
    for char in text:
        category = unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            kept += " "
        elif char not in "\x00\ufffd" and category not in {"Cc", "Cf"}:
            kept += char
    return kept


def isolate_cjk(text: str) -> str:
    return "".join(f" {char} " if _within(char, CJK_BLOCKS) else char for char in text)


def without_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def split_punctuation(word: str) -> list[str]:
    parts = [""]
    for char in word:
        if _within(char, ASCII_MARKS) or unicodedata.category(char).startswith("P"):
            parts += [char, ""]
        else:
            parts[-1] += char
    return [part for part in parts if part]


def basic_words(
    text: str, *, lower_case: bool, strip_accents: bool | None = None, chinese: bool = True
) -> list[str]:
    """Returns the words. The options besides ``lower_case`` are from Hugging Face."""
    text = clean(text)
    if chinese:
        text = isolate_cjk(text)
    split: list[str] = []
    for word in text.split():
        if lower_case:
            word = word.lower()
        if lower_case if strip_accents is None else strip_accents:
            word = without_accents(word)
        split += split_punctuation(word)
    return " ".join(split).split()


def word_pieces(word: str, vocabulary: Collection[str]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                pieces.append(piece)
                start = end
                break
        else:
            return ["[UNK]"]
    return pieces


def tokenize(
    text: str,
    vocabulary: Collection[str],
    *,
    lower_case: bool,
    strip_accents: bool | None = None,
    chinese: bool = True,
) -> list[str]:
    words = basic_words(text, lower_case=lower_case, strip_accents=strip_accents, chinese=chinese)
    return [piece for word in words for piece in word_pieces(word, vocabulary)]
