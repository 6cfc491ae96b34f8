"""The base class of all tokenizers."""

import abc
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_together
from bert_jax.text.basic_tokenizer import UNICODE_VERSION
from bert_jax.text.vocabulary import (
    SPECIAL_PIECES,
    SpecialIds,
    SpecialPieces,
    find_special,
    split_at_masks,
)
from bert_jax.text.word_starts import WordBounds

CONFIG_FILE = "tokenizer_config.json"


class Tokenizer(abc.ABC):
    """Turns text into ids and back.

    ``tokenizer.encode("unaffable")`` -> ``[14477, 20961, 3468]``, which is ``un ##aff ##able`` in
    the uncased 2018 vocabulary. No method adds special pieces. A special piece in the text is
    ordinary text: ``"[SEP]"`` is three words.

    Attributes:
        vocab_size: number of ids.
        special: ids of the special pieces. Without a piece for unknown text, `unk` is the mask.
        special_pieces: texts of the special pieces, in the order of `special`.
        separators: number of separators between the texts of a pair: 1 in ``[CLS] A [SEP] B
            [SEP]``, 2 in RoBERTa's ``<s> A </s></s> B </s>``.
        is_continuation: whether a piece continues a word, bool ``[vocab_size]``.
        ends_word: words by the characters of adjacent pieces. None if `is_continuation` alone
            decides.
        hash: SHA-256 of vocabulary and settings. Tokenizers that behave alike have equal hashes.
        lower_case: whether text is lower-cased.
        strip_accents: whether accents are dropped. If None, the value of ``lower_case``.
    """

    is_continuation: np.ndarray
    ends_word: WordBounds | None = None
    separators: int = 1
    hash: str

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool,
        strip_accents: bool | None,
        source: str,
        special_pieces: Sequence[str] = SPECIAL_PIECES,
    ) -> None:
        """Creates a tokenizer from its pieces in the order of ids.

        Raises UserError at `source` if a special piece is missing.
        """
        self._vocabulary = tuple(vocabulary)
        self.lower_case, self.strip_accents = lower_case, strip_accents
        self.vocab_size = len(self._vocabulary)
        self.special_pieces = SpecialPieces(*special_pieces)
        self.special: SpecialIds = find_special(self._vocabulary, source, pieces=special_pieces)

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``, without special pieces."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_starts(self, texts: Sequence[str], most: int) -> list[np.ndarray]:
        """Returns at least the first `most` ids of each text, or all of them; int32 each."""
        del most
        return [np.array(ids, np.int32) for ids in self.encode_batch(texts)]

    def encode_parts(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Returns the ids of each part of each text. A space stands between the parts.

        The parts are the sentences of a document, or the words of a sentence.
        """
        parts = (self._spaced(part, first=not at) for text in texts for at, part in enumerate(text))
        encoded = iter(self.encode_batch(list(parts)))
        return [[next(encoded) for _ in text] for text in texts]

    def _spaced(self, part: str, *, first: bool) -> str:
        """Returns the text to encode for a part: here without the space before it."""
        return part

    def encode_masked(self, text: str) -> list[int]:
        """Returns the ids of ``text``, in which ``[MASK]`` stands for the mask.

        Raises UserError if the text has no mask.
        """
        first, *others = self._require_mask(text)
        ids = self.encode(first)
        for part in others:
            ids += [self.special.mask, *self.encode(part)]
        return ids

    def _require_mask(self, text: str) -> list[str]:
        return split_at_masks(text, self.special_pieces.mask)

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text with special pieces, but without padding."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the pieces as the vocabulary spells them.

        Raises UserError if an id is negative or not in the vocabulary.
        """
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise UserError.wrong(
                    "tokenizer.token_id", token_id, f"0 to {self.vocab_size - 1}", place="token id"
                )
        return [self._vocabulary[token_id] for token_id in ids]

    def ids_of(self, pieces: Collection[str]) -> tuple[int, ...]:
        """Returns the ids of some pieces. Pieces that the vocabulary lacks have none."""
        return tuple(at for at, piece in enumerate(self._vocabulary) if piece in pieces)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Returns readable texts of pieces. Raises UserError like `pieces`."""
        return self.pieces(ids)

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
        encoded = (json.dumps(settings, indent=2) + "\n").encode("utf-8")
        write_together(directory, {name: content, CONFIG_FILE: encoded})
