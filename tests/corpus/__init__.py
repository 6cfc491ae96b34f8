"""A small corpus, its tokenizer and its dataset, for tests of files on disk."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.dataset.provenance import Provenance
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, split_keys, starts_of
from bert_jax.text import load_wordpiece

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *("the", "a", "one", "old", "small", "grey", "river", "stone", "mill", "dog", "singer"),
    *("crossed", "saw", "built", "left", "house", "bridge", "in", "winter", "again", "slowly", "."),
]


def marker(document: int) -> str:
    """Returns a word that occurs only in this document."""
    return f"mark{document}"


def sentences(document: int, *, seed: int = 0) -> list[str]:
    """Returns 3 to 12 sentences of 2 to 15 words. Each sentence contains the document's marker."""
    rng = np.random.default_rng((seed, document))
    return [
        " ".join([marker(document), *rng.choice(WORDS[:-1], rng.integers(1, 14)), "."])
        for _ in range(rng.integers(3, 13))
    ]


def write_corpus(path: Path, *, documents: range) -> Path:
    """Writes documents in the format of google-research/bert: a sentence per line."""
    text = "\n".join("".join(f"{line}\n" for line in sentences(d)) for d in documents)
    path.write_text(text, encoding="utf-8")
    return path


def write_tokenizer(directory: Path, *, documents: int = 200, extra: Sequence[str] = ()) -> Path:
    """Writes a vocabulary of the corpus' words and markers."""
    vocabulary = [*SPECIAL, *WORDS, *map(marker, range(documents)), *extra]
    vocab_file = directory.with_suffix(".txt")
    vocab_file.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    load_wordpiece(vocab_file, lower_case=True).save(directory)
    return directory


def section(directory: Path, **changes: Any) -> ExamplesSection:
    """Returns settings that read ``text*.txt`` and ``tokenizer/`` and write ``dataset/``."""
    values: dict[str, Any] = {
        "input": (f"{directory}/text*.txt",),
        "tokenizer": str(directory / "tokenizer"),
        "output": str(directory / "dataset"),
        "max_seq_length": 48,
        "dupe_factor": 3,
        "validation_fraction": 0.2,
        "num_shards": 3,
        "workers": 1,
        "seed": 11,
    }
    return ExamplesSection(**(values | changes))


def make_dataset(directory: Path, **changes: Any) -> Provenance:
    """Writes a corpus of 60 documents in two files and a tokenizer, and makes the dataset."""
    write_corpus(directory / "text0.txt", documents=range(25))
    write_corpus(directory / "text1.txt", documents=range(25, 60))
    write_tokenizer(directory / "tokenizer")
    return make_examples(section(directory, **changes))


def from_lists(
    keys: Iterable[int], documents: Iterable[Sequence[Sequence[int]]], dtype: np.dtype
) -> TokenisedDocuments:
    """Concatenates non-empty documents: ``[[[7, 8], [9]]] -> tokens [7, 8, 9]``."""
    held = list(documents)
    sentences = [sentence for document in held for sentence in document]
    return TokenisedDocuments(
        split_keys(keys),
        starts_of([len(document) for document in held]),
        starts_of([len(sentence) for sentence in sentences]),
        np.array([token for sentence in sentences for token in sentence], dtype),
    )


def original(piece: str) -> str:
    """Returns the original text of a printed piece: ``[MASK]⟨京⟩`` → ``京``, ``北⟨=⟩`` → ``北``."""
    seen, _, was = piece.removesuffix("⟩").partition("⟨")
    return seen if was in ("", "=") else was


def stop_at(line: str) -> Callable[[str], None]:
    """Progress display that stops the run at a line with this prefix."""

    def say(said: str) -> None:
        if said.startswith(line):
            raise KeyboardInterrupt

    return say


def hashes(directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a directory."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
