"""The base class of tokenizers, which the rest of the project uses."""

import abc
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.text.basic_tokenizer import UNICODE_VERSION
from bert_jax.text.vocabulary import SPECIAL_PIECES, SpecialIds, find_special

CONFIG_FILE = "tokenizer_config.json"


class Tokenizer(abc.ABC):
    """Turns text into ids and back.

    ``tokenizer.encode("unaffable")`` -> ``[14477, 20961, 3468]`` (the uncased 2018 vocabulary:
    ``un ##aff ##able``). No method adds special pieces, and special pieces written in the text
    are ordinary text: ``"[SEP]"`` is three words.

    Attributes:
        vocab_size: how many ids there are.
        special: where BERT's special pieces are.
        is_continuation: marks the pieces that continue a word: bool ``[vocab_size]``.
        hash: SHA-256 over vocabulary and settings: equal where the tokenizers behave alike.
        lower_case: whether it lower-cases the text.
        strip_accents: whether it drops accents; None follows ``lower_case``.
    """

    is_continuation: np.ndarray
    hash: str

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool,
        strip_accents: bool | None,
        source: str,
    ) -> None:
        """Takes the pieces by id; UserError names `source` where a special piece is missing."""
        self._vocabulary = tuple(vocabulary)
        self.lower_case, self.strip_accents = lower_case, strip_accents
        self.vocab_size = len(self._vocabulary)
        self.special: SpecialIds = find_special(self._vocabulary, source)

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``, without special pieces."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        return [self.encode(text) for text in texts]

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text; special pieces show, except padding."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces as the vocabulary spells them.

        Raises UserError: an id is not in the vocabulary. Negative ones are refused too: Python
        would count from the end and spell a wrong piece.
        """
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise UserError(
                    "tokenizer.token_id",
                    "found {found}, allowed: 0 to {most}",
                    place="token id",
                    found=token_id,
                    most=self.vocab_size - 1,
                )
        return [self._vocabulary[token_id] for token_id in ids]

    @abc.abstractmethod
    def save(self, directory: epath.PathLike) -> None:
        """Writes a directory, local or ``gs://``, that ``load_tokenizer`` opens.

        Raises UserError: the directory cannot be written to.
        """

    def _write(
        self, directory: epath.PathLike, name: str, content: bytes, settings: Mapping[str, Any]
    ) -> None:
        """Writes the vocabulary, then settings with the hash: half a directory does not load."""
        # The names that Hugging Face's settings give the special pieces.
        special = zip(SpecialIds._fields, SPECIAL_PIECES, strict=True)
        settings = {
            **settings,
            **{f"{name}_token": piece for name, piece in special},
            "unicode_version": UNICODE_VERSION,
            "hash": self.hash,
        }
        root = epath.Path(directory)
        write_whole(root / name, content)
        write_whole(root / CONFIG_FILE, (json.dumps(settings, indent=2) + "\n").encode("utf-8"))
