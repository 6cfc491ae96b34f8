"""Words and word n-grams as 64-bit hashes that are equal in every process."""

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from bert_jax.data.rng import mix64

# Each ideograph or kana is a word, because these scripts have no spaces. In other scripts a word is
# a run of letters and digits.
_WORD: Final = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]"
    "|[^\\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]+"
)
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
_WORDS_REMEMBERED: Final = 1 << 16

# Base of the polynomial hash: 2**64 / golden ratio. It is odd and thus invertible modulo 2**64.
_BASE: Final = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """Returns lower-case words, no punctuation: ``"Don't, 世界" -> ["don", "t", "世", "界"]``."""
    lowered = text.lower()
    return (_ASCII_WORD if lowered.isascii() else _WORD).findall(lowered)


def text_hash(text: str) -> int:
    """Returns a 64-bit hash of a text (BLAKE2b)."""
    spelled = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(spelled, digest_size=8).digest(), "little")


_word_hash = functools.lru_cache(_WORDS_REMEMBERED)(text_hash)


def word_hashes(text: str) -> np.ndarray:
    """Returns the hash of each word of a text in order: ``[w]`` uint64."""
    found = words(text)
    return np.fromiter(map(_word_hash, found), np.uint64, count=len(found))


def ngram_hashes(hashes: np.ndarray, n: int) -> np.ndarray:
    """Returns the hashes of all n-grams: ``[w]`` word hashes -> ``[max(0, w - n + 1)]`` uint64.

    Two different n-grams have equal hashes with a probability of about 2⁻⁶⁴.
    """
    count = max(0, len(hashes) - n + 1)
    return combine([hashes[start : start + count] for start in range(n)])


def combine(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Returns a hash of each row of a table of uint64 columns: ``[k]`` each -> ``[k]`` uint64."""
    total = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        total = total * _BASE + column
    return mix64(total)
