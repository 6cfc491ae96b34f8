"""A reference implementation of google-research/bert's pairing, for the differential test.

It follows the paper and ``create_pretraining_data.py``, independently of the package: lists of
lists, Python's ``random``, one token at a time.
"""

import random

Sentence = list[int]
Document = list[Sentence]


def reference_pass(
    documents: list[Document],
    which: int,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
) -> list[tuple[list[int], list[int], int]]:
    """Returns the examples of one pass over a document: (tokens of A, tokens of B, label)."""
    room = max_seq_length - 3
    target = rng.randint(2, room) if rng.random() < short_seq_prob else room
    document = documents[which]
    examples = []
    chunk: list[Sentence] = []
    position = 0
    while position < len(document):
        chunk.append(document[position])
        at_end = position == len(document) - 1
        if at_end or sum(map(len, chunk)) >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for sentence in chunk[:cut] for token in sentence]
            b: list[int] = []
            label = 0
            if len(chunk) == 1 or rng.random() < 0.5:
                label = 1
                other = which
                while other == which:
                    other = rng.randint(0, len(documents) - 1)
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                position -= len(chunk) - cut
            else:
                for sentence in chunk[cut:]:
                    b.extend(sentence)
            reference_truncate(a, b, room, rng)
            examples.append((a, b, label))
            chunk = []
        position += 1
    return examples


def reference_truncate(a: list[int], b: list[int], room: int, rng: random.Random) -> None:
    """Drops tokens from the longer list until both fit. If the lengths are equal, drops from B."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()
