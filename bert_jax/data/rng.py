"""Counter-based random streams, keyed by purpose, and the hashes that they are made of."""

import hashlib
import struct
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def stream(seed: int, *key: int | str) -> np.random.Generator:
    """Returns the random stream of one purpose: ``stream(7, "mask", epoch, index)``.

    A counter-based generator (Philox 4x64) keyed by a 128-bit BLAKE2b hash of the arguments, so
    that its numbers are a function of ``(seed, *key)`` alone, independent of the process, the
    number of workers and earlier draws. Different keys give statistically independent streams:
    ``1`` and ``"1"`` are different keys, and so are ``("a", "b")`` and ``("ab",)``. The seed has
    any size and sign.
    """
    key_as_seed: Any = _Key(digest128(seed, *key))  # NumPy's annotation lacks ISeedSequence
    return np.random.Generator(np.random.Philox(key_as_seed))


class _Key(ISeedSequence):
    """Philox's key as a seed sequence: the numbers of ``Philox(key=…)`` in a third of the time.

    ``Philox(key=…)`` also creates a seed sequence, which it then ignores.
    """

    def __init__(self, key: int) -> None:
        self._words = np.frombuffer(key.to_bytes(16, "little"), "<u8")

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Returns the key; Philox asks for two words of 64 bits."""
        if n_words != 2 or dtype != np.uint64:
            raise ValueError(f"{n_words} words of {dtype}, allowed: 2 of uint64")
        return self._words


def digest128(seed: int, *key: int | str) -> int:
    """Returns the 128-bit BLAKE2b hash of ``(seed, *key)`` as an unsigned integer.

    Every part is prefixed with its type and its byte length, so that different keys never give the
    same bytes. Takes the arguments of :func:`stream`.
    """
    content = bytearray()
    for part in (seed, *key):
        if isinstance(part, str):
            kind, text = b"s", part.encode("utf-8", "surrogatepass")
        else:
            kind, text = b"i", b"%d" % part
        content += kind + struct.pack("<Q", len(text)) + text
    return int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")


def mix64(values: np.ndarray) -> np.ndarray:
    """Returns uint64 numbers scattered over the whole range, one to one.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable PRNGs", 2014).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
