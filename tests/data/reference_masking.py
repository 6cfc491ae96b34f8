"""google-research/bert's masking as its paper and script describe it, one token at a time.

Written for the differential test from the published procedure (google-research/bert,
``create_pretraining_data.py``), independently of the package: lists, Python's ``random``.
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
    """The predicted tokens and their replacements: (position, id), by position.

    ``continuations``: ids that continue the word before them; if empty, each token is a word.
    ``kept``: ids of ``[CLS]`` and ``[SEP]``.
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
