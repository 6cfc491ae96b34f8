"""Which documents go into which shard: buckets of one language each, small enough for memory."""

import itertools
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

MIN_DOCUMENTS_PER_BUCKET: Final = 16  # fewest documents that random next sentences should come from
TOKENS_PER_BUCKET: Final = 1_000_000  # of text: what a worker holds in memory
_MAX_DEFAULT_SHARDS: Final = 1024


class KeyRange(NamedTuple):
    """Documents of a language that are paired together in one shard, by the order of their keys."""

    language: str
    first_key: int  # the high half of the first document's key
    last_key: int  # of the last one's


def default_shards(*, documents: int, tokens: int) -> int:
    """Returns the number of shards for a split: a function of its size alone, not of the machine.

    A shard for every million tokens of text, a bucket each, and at most 1024. The random next
    sentences of a shard come from at least 16 documents. ``documents`` is the number of documents
    of the language that has most.
    """
    return min(_pieces(documents=documents, tokens=tokens), _MAX_DEFAULT_SHARDS)


def bucket_ranges(keys: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Cuts documents, sorted by key, into buckets of equal size.

    Ranges of the sorted order, not remainders, so that no bucket gets a single document by chance.
    ``keys`` are the high halves of all keys, ``[d]`` uint64, sorted. Returns the first and the last
    key of each bucket, both inclusive.
    """
    cuts = [len(keys) * bucket // count for bucket in range(count + 1)]
    return [(int(keys[a]), int(keys[b - 1])) for a, b in itertools.pairwise(cuts)]


def deal(
    keys: Mapping[str, np.ndarray], count: int, *, tokens: Mapping[str, int]
) -> list[list[KeyRange]]:
    """Assigns documents to ``count`` shards: returns the buckets of each.

    The language with most documents is in all shards. Any other language is in one shard, or in as
    many as get at least 16 of its documents. Small languages get different shards. A shard's
    documents of a language are one bucket, or several beyond a million tokens, each of at least 16
    documents, so memory does not grow with the corpus. ``keys`` has, by language, the high halves
    of all keys, ``[d]`` uint64, sorted.
    """
    shards: list[list[KeyRange]] = [[] for _ in range(count)]
    most = max(map(len, keys.values()))
    for number, (language, held) in enumerate(keys.items()):
        enough = max(1, min(count, len(held) // MIN_DOCUMENTS_PER_BUCKET))
        parts = count if len(held) == most else enough
        pieces = _pieces(documents=len(held) // parts, tokens=tokens[language] // parts)
        for place, (first, last) in enumerate(bucket_ranges(held, parts * pieces)):
            part = place // pieces
            shard = (part * len(keys) + number) * count // (parts * len(keys))
            shards[shard].append(KeyRange(language, first, last))
    return shards


def _pieces(*, documents: int, tokens: int) -> int:
    wanted = -(-tokens // TOKENS_PER_BUCKET)
    return max(1, min(wanted, documents // MIN_DOCUMENTS_PER_BUCKET))
