"""Counter-based random streams, keyed by purpose, and their hash functions."""

import hashlib
import struct

import numpy as np


def stream(seed: int, *key: int | str) -> np.random.Generator:
    """Returns the random stream of one purpose: ``stream(7, "mask", epoch, index)``.

    The generator is Philox 4x64, keyed by a 128-bit BLAKE2b hash of ``(seed, *key)``; its numbers
    depend on nothing else. Different keys give statistically independent streams. ``1`` and ``"1"``
    are different keys, and so are ``("a", "b")`` and ``("ab",)``. The seed is any integer.
    """
    return np.random.Generator(np.random.Philox(key=digest128(seed, *key)))


def digest128(seed: int, *key: int | str) -> int:
    """Returns the 128-bit BLAKE2b hash of ``(seed, *key)`` as an unsigned integer.

    Every part is prefixed with its type and byte length, so that different keys always give
    different input bytes.
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
    """Maps uint64 numbers one-to-one to pseudorandom numbers.

    Source: SplitMix64 (Steele, Lea and Flood, "Fast splittable PRNGs", 2014).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
