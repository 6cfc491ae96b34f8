"""The base class of all tokenizers."""

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

    ``tokenizer.encode("unaffable")`` -> ``[14477, 20961, 3468]``, which is ``un ##aff ##able`` in
    the uncased 2018 vocabulary. No method adds special pieces. A special piece in the text is
    ordinary text: ``"[SEP]"`` is three words.

    Attributes:
        vocab_size: number of ids.
        special: ids of BERT's special pieces.
        is_continuation: whether a piece continues a word, bool ``[vocab_size]``.
        hash: SHA-256 of vocabulary and settings. Tokenizers that behave alike have equal hashes.
        lower_case: whether text is lower-cased.
        strip_accents: whether accents are dropped. If None, the value of ``lower_case``.
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
        """Creates a tokenizer from its pieces in the order of ids.

        Raises UserError at `source` if a special piece is missing.
        """
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
        """Returns readable text with special pieces, but without padding."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces as the vocabulary spells them.

        Raises UserError if an id is negative or not in the vocabulary.
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
        """Writes a directory, local or ``gs://``, for ``load_tokenizer``.

        Raises UserError if the directory cannot be written.
        """

    def _write(
        self, directory: epath.PathLike, name: str, content: bytes, settings: Mapping[str, Any]
    ) -> None:
        """Writes the vocabulary first and the settings last.

        After an interruption the settings are missing, so the directory cannot be opened.
        """
        # Hugging Face's settings name the special pieces "pad_token" and so on.
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
