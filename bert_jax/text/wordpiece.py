"""WordPiece: greedy longest match within each word, exactly as in google-research/bert."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from etils import epath
from tokenizers import decoders, models

from bert_jax.text.basic_tokenizer import UNICODE_VERSION, WordSplitter
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import UNK, read_vocabulary

VOCAB_FILE = "vocab.txt"
CONTINUATION = "##"
MAX_WORD_CHARACTERS = 200
"""Maximum length of a word in google-research/bert. A longer word is [UNK]."""
_CACHED_WORDS = 1 << 17  # maximum number of cached words, about 30 MB
_LONGEST_TOKEN = 40  # characters of a cached text between blanks: a longer one seldom recurs
_ID = np.dtype(np.int32)
# Characters at which Python divides a text into words, but WordPiece does not.
_OTHER_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


class WordPieceTokenizer(Tokenizer):
    """A vocabulary of words and ``##`` continuations.

    ``WordSplitter`` splits text into words, and the ``tokenizers`` library divides each word into
    pieces. The ids of words are cached.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lower_case: bool,
        strip_accents: bool | None = None,
        chinese: bool = True,
        max_word_characters: int = MAX_WORD_CHARACTERS,
        final_sigma: bool = True,
        source: str = VOCAB_FILE,
    ) -> None:
        """Creates a tokenizer from distinct pieces in the order of ids.

        A word with more than `max_word_characters` is [UNK]. For the other settings see
        `WordSplitter`. Raises UserError at ``source`` if a special piece is missing.
        """
        super().__init__(
            vocabulary, lower_case=lower_case, strip_accents=strip_accents, source=source
        )
        self.chinese, self.max_word_characters = chinese, max_word_characters
        self._splitter = WordSplitter(
            lower_case=lower_case,
            strip_accents=strip_accents,
            chinese=chinese,
            final_sigma=final_sigma,
        )
        self.final_sigma = self._splitter.final_sigma
        self.is_continuation = np.array(
            [piece.startswith(CONTINUATION) for piece in self._vocabulary], dtype=np.bool_
        )
        self.hash = _hash(self._vocabulary, self._splitter, longest=max_word_characters)
        self._ids_of_word = _IdsOfWord(
            self._vocabulary, unknown=self.special.unk, longest=max_word_characters
        )
        self._ids_of_token = _IdsOfToken(self.encode)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``: ``"unaffable"`` -> the ids of ``un ##aff ##able``."""
        words = self._splitter.split(text)
        return list(chain.from_iterable(map(self._ids_of_word.__getitem__, words)))

    def encode_starts(self, texts: Sequence[str], most: int) -> list[np.ndarray]:
        """Returns at least the first `most` ids of each text, or all of them; int32 each."""
        return [self._encode_start(text, most) for text in texts]

    def _encode_start(self, text: str, most: int) -> np.ndarray:
        if _OTHER_SPACES.search(text):
            return np.array(self.encode(text), np.int32)
        found = bytearray()
        while text and len(found) < _ID.itemsize * most:
            tokens = text.split(None, most)
            text = tokens.pop() if len(tokens) > most else ""
            found += b"".join(map(self._ids_of_token.__getitem__, tokens))
        return np.frombuffer(bytes(found), _ID)

    def words(self, text: str) -> list[str]:
        """Returns the words that the vocabulary divides into pieces."""
        return self._splitter.split(text)

    def with_words(self, words: Sequence[str]) -> WordPieceTokenizer:
        """Returns a tokenizer with new words after all other pieces.

        A longer word that begins with a new word also begins with its piece.
        """
        return self._rebuild([*self._vocabulary, *words])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns text with joined continuations, without padding or spaces before punctuation."""
        kept = [token_id for token_id in ids if token_id != self.special.pad]
        return decoders.WordPiece(prefix=CONTINUATION, cleanup=True).decode(self.pieces(kept))

    def save(self, directory: epath.PathLike) -> None:
        """Writes ``vocab.txt`` and ``tokenizer_config.json``, which Hugging Face can open too."""
        vocabulary = "".join(f"{piece}\n" for piece in self._vocabulary)
        settings: dict[str, Any] = {
            "type": "wordpiece",
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": self.chinese,
        }
        if self.max_word_characters != MAX_WORD_CHARACTERS:
            settings["max_word_characters"] = self.max_word_characters
        if not self.final_sigma:
            settings["final_sigma"] = False
        self._write(directory, VOCAB_FILE, vocabulary.encode("utf-8"), settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the vocabulary and the settings without the cache, for worker processes."""
        return self._rebuild, (self._vocabulary,)

    @property
    def _rebuild(self) -> functools.partial[WordPieceTokenizer]:
        """Creates a tokenizer with these settings from a vocabulary."""
        settings = ("lower_case", "strip_accents", "chinese", "max_word_characters", "final_sigma")
        return functools.partial(type(self), **{name: getattr(self, name) for name in settings})


def load_wordpiece(
    vocab_file: epath.PathLike,
    *,
    lower_case: bool,
    strip_accents: bool | None = None,
    chinese: bool = True,
    max_word_characters: int = MAX_WORD_CHARACTERS,
) -> WordPieceTokenizer:
    """Opens a ``vocab.txt`` of the 2018 release. The path is the file or its directory.

    For the settings see `WordPieceTokenizer`. ``lower_case`` is True for uncased models and for the
    Chinese model. Raises UserError if the file is missing, or is not a vocabulary with BERT's
    special pieces.
    """
    path = epath.Path(vocab_file)
    if path.is_dir():
        path = path / VOCAB_FILE
    return WordPieceTokenizer(
        read_vocabulary(path),
        lower_case=lower_case,
        strip_accents=strip_accents,
        chinese=chinese,
        max_word_characters=max_word_characters,
        source=str(path),
    )


class _IdsOfWord(dict[str, tuple[int, ...]]):
    """Caches the ids of each word. The library computes them at the word's first use."""

    def __init__(self, vocabulary: Sequence[str], *, unknown: int, longest: int) -> None:
        super().__init__()
        self._unknown, self._longest = (unknown,), longest
        self._model = models.WordPiece(
            {piece: token_id for token_id, piece in enumerate(vocabulary)},
            unk_token=UNK,
            max_input_chars_per_word=longest,
            continuing_subword_prefix=CONTINUATION,
        )

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(word) > self._longest:  # not cached: it may be a megabyte long
            return self._unknown
        try:
            ids = tuple(token.id for token in self._model.tokenize(word))
        except UnicodeEncodeError:  # a lone surrogate, which no vocabulary file can contain
            ids = self._unknown
        if len(self) >= _CACHED_WORDS:
            self.clear()
        self[word] = ids
        return ids


class _IdsOfToken(dict[str, bytes]):
    """Caches the ids of each text between blanks, as int32. Blanks separate words."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, token: str) -> bytes:
        ids = np.array(self._encode(token), _ID).tobytes()
        if len(token) <= _LONGEST_TOKEN:
            if len(self) >= _CACHED_WORDS:
                self.clear()
            self[token] = ids
        return ids


def _hash(vocabulary: Sequence[str], splitter: WordSplitter, *, longest: int) -> str:
    settings: dict[str, Any] = {
        "type": "wordpiece",
        "lower_case": splitter.lower_case,
        "strip_accents": splitter.strip_accents,
        "chinese": splitter.chinese,
        "unicode": UNICODE_VERSION,
    }
    if longest != MAX_WORD_CHARACTERS:  # hashes of earlier versions stay
        settings["max_word_characters"] = longest
    if not splitter.final_sigma:
        settings["final_sigma"] = False
    content = json.dumps([settings, list(vocabulary)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()
