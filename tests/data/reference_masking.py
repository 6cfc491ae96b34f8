"""google-research/bert's masking, one token at a time.

Reference for tests: the procedure of ``create_pretraining_data.py``, with lists and Python's
``random`` instead of NumPy.
"""

import random
from collections.abc import Collection


def reference_masks(
    ids: list[int],
    *,
    continuations: Collection[int],
    kept: Collection[int],
    mask_id: int,
    vocab_size: int,
    most: int,
    rng: random.Random,
) -> list[tuple[int, int]]:
    """Returns the position and the new id of each predicted token, in order of positions.

    ``continuations`` are ids that continue a word. If it is empty, each token is a word. ``kept``
    are the ids of ``[CLS]`` and ``[SEP]``.
    """
    words: list[list[int]] = []
    for position, token in enumerate(ids):
        if token in kept:
            continue
        if token in continuations and words:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    wanted = min(most, max(1, round(len(ids) * 0.15)))
    shown: list[tuple[int, int]] = []
    for word in words:
        if len(shown) >= wanted:
            break
        if len(shown) + len(word) > wanted:
            continue
        for position in word:
            instead = mask_id
            if rng.random() >= 0.8:
                instead = ids[position] if rng.random() < 0.5 else rng.randrange(vocab_size)
            shown.append((position, instead))
    return sorted(shown)
