"""Tokenizers that the ``tokenizers`` library runs: byte-level BPE, unigram and other WordPiece."""

import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tokenizers
from etils import epath

from bert_jax.files.atomic import write_together
from bert_jax.text import pipeline_file
from bert_jax.text.added_tokens import check_ids
from bert_jax.text.basic_tokenizer import is_word_character
from bert_jax.text.cached_words import CachedWords, are_apart
from bert_jax.text.fast_pipeline import WORTH, FastPipeline, open_fast
from bert_jax.text.pipeline_file import Roles, Spec
from bert_jax.text.sentence_piece import WORD_START
from bert_jax.text.special_rows import find_roles, find_separators
from bert_jax.text.tokenizer import CONFIG_FILE, Tokenizer
from bert_jax.text.vocabulary import in_order_of_ids
from bert_jax.text.word_starts import WordBounds


def _byte_of_character() -> dict[str, int]:
    """Returns the byte that each character of a byte-level piece stands for.

    Source: `bytes_to_unicode` in openai/gpt-2, `encoder.py`. Printable characters of Latin-1 stand
    for themselves; the other bytes are numbered from U+0100.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in own]
    spelled = {chr(byte): byte for byte in own}
    return spelled | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTES: Final = _byte_of_character()
SPELLINGS: Final = {byte: character for character, byte in BYTES.items()}
"""Character that stands for each byte in a byte-level piece: ``32 -> "Ġ"``."""


PIPELINE_FILE = "tokenizer.json"
_FEW_THREADS: Final = 4  # more threads of the library are faster than one with a table
_OFF: Final = ("false", "0", "off", "no", "n", "f")  # values of TOKENIZERS_PARALLELISM
_SURROGATE = re.compile("[\ud800-\udfff]")
JOINERS: Final = "\u200c\u200d"
"""Zero-width characters inside words: non-joiner and joiner."""
_FALLBACK = re.compile("<0x([0-9A-F]{2})>")  # pieces of single bytes, for unknown characters


class OffsetIds(NamedTuple):
    """The ids of a text, and the characters of each piece without the spaces around them."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # start and exclusive end


class LibraryTokenizer(Tokenizer):
    """A ``tokenizer.json``, such as RoBERTa's, XLM-R's, CamemBERT's or ModernBERT's.

    Ids equal the library's, except for the five special pieces in a text, which are ordinary text
    here. All other added tokens keep their meaning: ModernBERT's runs of spaces and ``[unused0]``,
    and markers such as ``<e1>``. A piece of one word never contains another word; see
    `bert_jax.text.word_starts`.
    """

    def __init__(
        self, spec: Spec, *, roles: Roles, separators: int, source: str = PIPELINE_FILE
    ) -> None:
        """Creates a tokenizer.

        Args:
            spec: result of `bert_jax.text.pipeline_file.check_spec`.
            roles: texts of the special pieces.
            separators: number of separators between the texts of a pair.
            source: name of the file in errors.

        Raises:
            UserError: the model or the pre-tokenizer has another kind, the ids have gaps, or the
                library refuses the file.
        """
        self._marks = pipeline_file.marks_of(spec, source)
        self.spec, self.roles = pipeline_file.with_roles(spec, roles), roles
        self._pipeline = _open(self.spec, source, roles)
        check_ids(self.spec, self._pipeline.get_vocab(), source)
        vocabulary = in_order_of_ids(pipeline_file.pieces_of(self.spec), place=source)
        super().__init__(
            vocabulary,
            lower_case=pipeline_file.lower_cases(self.spec),
            strip_accents=None,
            source=source,
            # A word without pieces is read as the mask if there is no piece for unknown text.
            special_pieces=[piece or roles.mask for piece in roles],
        )
        self.separators = separators
        self._added = {token["id"]: token for token in self.spec["added_tokens"]}
        self._encoded = 0  # characters of batches
        if self._marks == "prefix":
            mark = self.spec["model"]["continuing_subword_prefix"]
            self.is_continuation = np.array(
                [
                    piece.startswith(mark) and number not in self._added
                    for number, piece in enumerate(vocabulary)
                ],
                np.bool_,
            )
        else:
            self.ends_word = WordBounds.of(map(self._bytes_of_word, range(self.vocab_size)))
            self.is_continuation = self.ends_word.continues
        content = pipeline_file.essence(self.spec, roles, separators)
        self.hash = hashlib.sha256(content.encode("ascii")).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``. A lone surrogate is encoded as U+FFFD."""
        return self._pipeline.encode(without_surrogates(text), add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text.

        After a megabyte of text, `fastokens` encodes byte-level BPE, if it is installed. Otherwise
        the threads of `tokenizers` encode the texts if there are many. Few threads are slower than
        one with a table of words, if the pipeline allows it. No thread starts if the environment
        forbids threads.
        """
        texts = [without_surrogates(text) for text in texts]
        self._encoded += sum(map(len, texts))
        if self._encoded >= WORTH and self._fast is not None:
            return [ids.tolist() for ids in self._fast.encode(texts)]
        if self._words is not None and _threads() <= _FEW_THREADS:
            return self._words.encode_batch(texts)
        found = self._pipeline.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_starts(self, texts: Sequence[str], most: int) -> list[np.ndarray]:
        """Returns all ids of each text, int32 each."""
        if self._encoded < WORTH or self._fast is None:
            return super().encode_starts(texts, most)
        return self._fast.encode([without_surrogates(text) for text in texts])

    def encode_offsets(self, text: str) -> OffsetIds:
        """Returns the ids of ``text`` with the characters of each piece."""
        found = self._pipeline.encode(without_surrogates(text), add_special_tokens=False)
        offsets = []
        for start, end in found.offsets:
            inner = text[start:end]
            start += len(inner) - len(inner.lstrip())
            offsets.append((start, max(start, end - len(inner) + len(inner.rstrip()))))
        return OffsetIds(found.ids, offsets)

    def encode_masked(self, text: str) -> list[int]:
        """Returns the ids of ``text``, in which the mask's text stands for the mask.

        If the file sets it, the mask includes adjacent spaces: ``The <mask>`` has two pieces.
        Raises UserError if the text has no mask.
        """
        self._require_mask(text)
        return self._masked.encode(without_surrogates(text), add_special_tokens=False).ids

    @property
    def takes_words(self) -> bool:
        """Whether `with_words` leaves the pieces of all other words unchanged.

        A unigram model, or a pipeline that adds a space to a text, would change the pieces that
        follow a new word.
        """
        return self._marks == "bytes" and not pipeline_file.adds_spaces(self.spec)

    def words(self, text: str) -> list[str]:
        """Returns the words of the normalised text: runs of letters, numbers, marks and ``_``.

        A joiner of letters, such as in Persian, is a part of its word, as in the library.
        """
        text = without_surrogates(text)
        if self._pipeline.normalizer is not None:
            text = self._pipeline.normalizer.normalize_str(text)
        return text.translate(_WORDS).split()

    def with_words(self, words: Sequence[str]) -> "LibraryTokenizer":
        """Returns a tokenizer with new words after all other pieces.

        A new word is an added token: it has one piece wherever it is not a part of a longer word,
        and takes the white space before it. The pieces of all other words stay.
        """
        flags = {"single_word": True, "lstrip": True, "rstrip": False, "normalized": True}
        added = [
            {"id": self.vocab_size + number, "content": word, **flags, "special": False}
            for number, word in enumerate(words)
        ]
        spec = self.spec | {"added_tokens": [*self.spec["added_tokens"], *added]}
        return LibraryTokenizer(spec, roles=self.roles, separators=self.separators)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text with special pieces, but without padding."""
        self.pieces(ids)  # raises UserError for unknown ids
        runs: list[list[int]] = [[]]
        for token_id in ids:
            if self._takes_space(token_id):  # the library would leave out the space
                runs.append([])
            if token_id != self.special.pad:
                runs[-1].append(token_id)
        return " ".join(text for text in map(self._decode_run, runs) if text)

    def _decode_run(self, ids: Sequence[int]) -> str:
        if self._marks == "bytes":  # the library takes the letters of added tokens for bytes, too
            return b"".join(map(self._bytes, ids)).decode("utf-8", "replace")
        return self._pipeline.decode(ids, skip_special_tokens=False)

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each piece: ``Ġthe`` -> ``" the"``. Divided characters are U+FFFD."""
        self.pieces(ids)
        return [self._bytes(token_id).decode("utf-8", "replace") for token_id in ids]

    def save(self, directory: epath.PathLike) -> None:
        """Writes ``tokenizer.json`` and ``tokenizer_config.json``, for Hugging Face too."""
        settings = {
            "type": "tokenizers",
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{role}_token": piece for role, piece in self.roles._asdict().items() if piece},
            "separators": self.separators,
            "hash": self.hash,
        }
        encoded = (json.dumps(settings, indent=2) + "\n").encode("utf-8")
        contents = {PIPELINE_FILE: pipeline_bytes(self.spec), CONFIG_FILE: encoded}
        write_together(directory, contents)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the file's content and the settings, for worker processes."""
        settings = {"roles": self.roles, "separators": self.separators}
        return functools.partial(type(self), **settings), (self.spec,)

    def _spaced(self, part: str, *, first: bool) -> str:
        """Returns a part with the space before it, because it changes the first piece."""
        return part if first or not part else f" {part}"

    @functools.cached_property
    def _fast(self) -> FastPipeline | None:
        """The pipeline of `fastokens`, if its ids are the same. It takes a second to open."""
        hidden = _without_roles(self.spec, self.roles)
        spec = {**hidden, "added_tokens": _special_roles(self.spec, self.roles)}
        return open_fast(spec, self._pipeline, threads=_threads(), source=PIPELINE_FILE)

    @functools.cached_property
    def _words(self) -> CachedWords | None:
        """The table of words, if no word changes the pieces of another."""
        return CachedWords(self._pipeline, self.spec) if are_apart(self.spec) else None

    @functools.cached_property
    def _masked(self) -> tokenizers.Tokenizer:
        """The pipeline in which the mask is an added token that text may contain."""
        return _open(self.spec, PIPELINE_FILE, self.roles, matched=self.roles.mask)

    def _bytes(self, token_id: int) -> bytes:
        """Returns the text of a piece in UTF-8, with a space for the mark of a space."""
        piece = self._vocabulary[token_id]
        if token_id in self._added or self._marks == "prefix":
            return piece.encode()
        if self.spec["model"].get("byte_fallback") and (byte := _FALLBACK.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        if self._marks == "metaspace":
            return piece.replace(WORD_START, " ").encode()
        # Pieces without a meaning, such as unused slots, may have other characters.
        if any(character not in BYTES for character in piece):
            return piece.encode()
        return bytes(BYTES[character] for character in piece)

    def _takes_space(self, token_id: int) -> bool:
        """Returns whether a piece is a word of `with_words`."""
        added = self._added.get(token_id)
        return added is not None and added["single_word"] and added["lstrip"]

    def _bytes_of_word(self, token_id: int) -> bytes | None:
        if self.roles.unk is not None and token_id == self.special.unk:
            return b""  # the rest of its word may be known
        return None if token_id in self._added else self._bytes(token_id)


def pipeline_bytes(spec: Spec) -> bytes:
    """Returns the content of a ``tokenizer.json``."""
    return (json.dumps(spec, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def read_pipeline(
    found: dict[str, Any], settings: dict[str, Any], *, source: str
) -> LibraryTokenizer:
    """Returns the tokenizer of a ``tokenizer.json``, without the files beside it.

    Args:
        found: content of the file.
        settings: names of the special pieces.
        source: name of the file in errors.

    Raises:
        UserError: as `LibraryTokenizer`, or if a special piece is missing or rows of pairs have
            an unknown form.
    """
    spec = pipeline_file.check_spec(found, source)
    roles = find_roles(settings, spec, source)
    separators = find_separators(settings, spec, roles, source)
    return LibraryTokenizer(spec, roles=roles, separators=separators, source=source)


def _open(
    spec: Spec, source: str, roles: Roles, *, matched: str | None = None
) -> tokenizers.Tokenizer:
    """Opens a pipeline that treats special pieces in a text as ordinary text, except `matched`."""
    added = _special_roles(spec, roles, matched=matched)
    pipeline = pipeline_file.open_pipeline({**spec, "added_tokens": added}, source)
    # The model is replaced afterwards, so that added tokens keep the ids of the file.
    pipeline.model = pipeline_file.open_pipeline(_without_roles(spec, roles), source).model
    pipeline.encode_special_tokens = True
    return pipeline


def _special_roles(spec: Spec, roles: Roles, *, matched: str | None = None) -> list[dict[str, Any]]:
    """Returns the added tokens. Both libraries can ignore those that are special in a text."""
    return [
        {**token, "special": token["content"] in roles and token["content"] != matched}
        for token in spec["added_tokens"]
    ]


def _without_roles(spec: Spec, roles: Roles) -> Spec:
    """Returns the pipeline with a model that yields no special piece."""
    return pipeline_file.without_special(spec, {piece for piece in roles if piece is not None})


def _threads() -> int:
    """Returns the number of threads of the library."""
    forbidden = os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in _OFF
    return 1 if forbidden else os.cpu_count() or 1


def without_surrogates(text: str) -> str:
    """Returns the text with U+FFFD for each lone surrogate, which the library refuses."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class _Words(dict[int, str]):
    """A table for ``str.translate`` that keeps the characters of words and replaces all others."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        inside = is_word_character(character) or character in JOINERS or character == "_"
        self[code] = kept = character if inside else " "
        return kept


_WORDS: Final = _Words()
