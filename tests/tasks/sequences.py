"""A tokenizer of made-up words, and predictions from given logits."""

import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_jax.tasks.family import DataRequest, Record, Split
from bert_jax.text import Tokenizer
from bert_jax.text.wordpiece import load_wordpiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *(f"w{number}" for number in range(60)), "##x"]
WORDS = ["the", "dog", "river", "old", "mill", "saw", "a", "in", "##s", "##ing", "un", "##seen"]
LETTERS = sorted({*string.ascii_lowercase} - {"a"})

IDS = {piece: number for number, piece in enumerate(PIECES)}


def make_tokenizer(directory: Path) -> Tokenizer:
    """Returns a tokenizer. `w0` to `w59` have one piece each, `w0x` has two."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in PIECES))
    return load_wordpiece(path, lower_case=True)


def small_tokenizer(directory: Path) -> Tokenizer:
    """Returns a tokenizer. `dogs` and `unseen` have two pieces, `zzz` three, `-` one."""
    later = [f"##{letter}" for letter in "abcdefz"]
    file = write_lines(directory / "vocab.txt", [*SPECIAL, *WORDS, *LETTERS, *later, "-", "."])
    return load_wordpiece(file, lower_case=True)


def opening(directory: Path, *roles: str, **changes: object) -> DataRequest:
    """Returns a request for `roles`, by default train and dev."""
    made = DataRequest(make_tokenizer(directory / "tokenizer"), max_length=16, seed=0)
    return made._replace(roles=roles or made.roles, **changes)


def write_lines(path: Path, lines: Sequence[str], *, end: str = "\n") -> Path:
    """Writes lines as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode())
    return path


def predict(split: Split, logits: Sequence[Sequence[float]]) -> list[Record]:
    """Returns the records of a split, given the logits of its rows."""
    return split.records(
        [split.reduce(row, np.asarray(found, np.float32)) for row, found in enumerate(logits)]
    )


def labels_of(split: Split) -> list[object]:
    """Returns a list with the label of each row, None for rows without a label."""
    found = (split.row(row).targets.get("label") for row in range(len(split.lengths)))
    return [label.tolist() if isinstance(label, np.ndarray) else label for label in found]
