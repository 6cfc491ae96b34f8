"""A dev set out of a training set that came without one."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from bert_jax.tasks.sequence import TextExample


def hold_out(
    examples: Sequence[TextExample], *, fraction: float, seed: int
) -> tuple[list[TextExample], list[TextExample]]:
    """Returns a training set and a dev set, each in the order of the file.

    Which examples are held out is a matter of their texts and of the seed, not of their order.
    Where there is one label, each label gives its share: ``round(fraction · n)`` examples, but one
    at least and never all. Examples of the same label and texts stay together, so that no text is
    trained on and asked for as well.
    """
    strata: defaultdict[Hashable, list[int]] = defaultdict(list)
    for number, example in enumerate(examples):
        strata[example.target if isinstance(example.target, int) else None].append(number)
    held = {
        number
        for members in strata.values()
        for number in _held(examples, members, fraction=fraction, seed=seed)
    }
    train = [example for number, example in enumerate(examples) if number not in held]
    return train, [examples[number] for number in sorted(held)]


def _held(
    examples: Sequence[TextExample], members: Sequence[int], *, fraction: float, seed: int
) -> list[int]:
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    for number in members:
        groups[_hash(examples[number], seed)].append(number)
    wanted = max(1, math.floor(fraction * len(members) + 0.5))
    held: list[int] = []
    for key in sorted(groups)[:-1]:  # the last one stays
        if len(held) >= wanted:
            break
        held += groups[key]
    return held


def _hash(example: TextExample, seed: int) -> bytes:
    # A length before each text, so that ("ab", "c") is not ("a", "bc").
    parts = [example.text] if example.pair is None else [example.text, example.pair]
    encoded = [part.encode() for part in parts]
    message = b"".join(len(part).to_bytes(8, "little") + part for part in encoded)
    return hashlib.blake2b(message, digest_size=16, key=str(seed).encode()).digest()
