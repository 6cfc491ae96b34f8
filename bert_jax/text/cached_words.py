"""Keeps the ids of words that a pipeline of the ``tokenizers`` library divides into pieces.

The library takes two to four microseconds for each word, and a table a seventh of this. About 95
of 100 words of a long English text have occurred before.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import tokenizers

from bert_jax.text.pipeline_limits import parts_of
from bert_jax.text.sentence_piece import WORD_START

# Characters that join the next character, even a space, to one grapheme. SentencePiece's
# normalisation reads a grapheme as a whole. Source: Unicode 16, Grapheme_Cluster_Break=Prepend.
_PREPEND: Final = (
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3"
    "\U000113d1\U0001193f\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02"
)
# A space may belong to the word before it after white space and these characters.
_INSIDE: Final = re.compile(rf" (?<=[\s{_PREPEND}] )")
_BEFORE_WORD: Final = re.compile(rf" (?<![\s{_PREPEND}] )(?! )")
_NOT_SPACES: Final = re.compile("[\x1c-\x1f]")  # white space only for Python
_TWO_WORDS: Final = re.compile(r"\S\s")
_KEEP_ASCII: Final = ("NFC", "NFD", "NFKC", "NFKD")
_BY_CHARACTER: Final = (*_KEEP_ASCII, "Lowercase", "StripAccents", "Precompiled")
_CACHED: Final = 1 << 17  # maximum number of words, and of parts, about 30 MB each
_LONGEST: Final = 64  # characters of a cached word: a longer one seldom occurs again
_PROBED: Final = 8  # one of this number of texts measures the share of new words
_NEW: Final = 1 / 3  # share of characters in new words, from which the library is faster


def are_apart(spec: dict[str, Any]) -> bool:
    """Returns whether the pieces of each word are independent of other words.

    The pipeline must divide text at white space and mark the start of each part. The normalizer
    must read no neighbours beyond a space, and no added token may contain the end of a word or take
    spaces after it.
    """
    for step in parts_of(spec["normalizer"], "normalizers"):
        texts = [step["pattern"].get("String"), step["content"]] if "pattern" in step else []
        apart = all(isinstance(text, str) and not re.search(r"\s", text) for text in texts)
        if not apart or step.get("type") not in (*_BY_CHARACTER, "Replace"):
            return False
    for token in spec["added_tokens"]:
        if token["rstrip"] or _TWO_WORDS.search(token["content"]):
            return False
    steps = [*parts_of(spec["pre_tokenizer"], "pretokenizers")]
    if [step.get("type") for step in steps] != ["WhitespaceSplit", "Metaspace"]:
        return False
    return steps[1].get("prepend_scheme", "always") == "always" and steps[1].get("split", True)


class CachedWords(dict[str, tuple[int, ...]]):
    """The ids of each word, by the word without the space before it.

    The first word of a text has a space in its key, because the text has none before it. The ids
    are computed at the word's first use.
    """

    def __init__(self, pipeline: tokenizers.Tokenizer, spec: dict[str, Any]) -> None:
        """Creates an empty table for an open `pipeline` of `spec`. See `are_apart`."""
        super().__init__()
        self._pipeline, self._normalizer = pipeline, pipeline.normalizer
        steps = parts_of(spec["normalizer"], "normalizers")
        self._keeps_ascii = all(step.get("type") in _KEEP_ASCII for step in steps)
        added = [token["content"] for token in spec["added_tokens"]]
        found = {*added, *map(self._normalized, added)} - {""}
        self._added = re.compile("|".join(map(re.escape, sorted(found))) or "(?!)")
        self._parts = _IdsOfPart(pipeline.model)
        self._new = 0  # characters of words that were not in the table

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text.

        If the first texts have many new words, as in Chinese, the library encodes the others.
        """
        probed, before = texts[: len(texts) // _PROBED + 1], self._new
        encoded = [*map(self.encode, probed)]
        if self._new - before > _NEW * sum(map(len, probed)):
            others = self._pipeline.encode_batch_fast(
                texts[len(probed) :], add_special_tokens=False
            )
            return [*encoded, *(encoding.ids for encoding in others)]
        return [*encoded, *map(self.encode, texts[len(probed) :])]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text."""
        words = _BEFORE_WORD.split(text) if _INSIDE.search(text) else text.split(" ")
        words[0] = f" {words[0]}"
        return [*chain.from_iterable(map(self.__getitem__, words))]

    def __missing__(self, key: str) -> tuple[int, ...]:
        self._new += len(key)
        word = key[1:] if key[:1] == " " else f" {key}"
        text = self._normalized(word)
        whole = self._added.search(word) or self._added.search(text)
        parts = None if whole else _parts(text)
        if parts is None:
            ids = tuple(self._pipeline.encode(word, add_special_tokens=False).ids)
        else:
            ids = tuple(chain.from_iterable(map(self._parts.__getitem__, parts)))
        return _keep(self, key, ids)

    def _normalized(self, text: str) -> str:
        if self._normalizer is None or (self._keeps_ascii and text.isascii()):
            return text
        return self._normalizer.normalize_str(text)


class _IdsOfPart(dict[str, tuple[int, ...]]):
    """The ids of each part of a word."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, part: str) -> tuple[int, ...]:
        tokens = self._model.tokenize(WORD_START + part)
        return _keep(self, part, tuple([token.id for token in tokens]))


def _keep(table: dict[str, tuple[int, ...]], word: str, ids: tuple[int, ...]) -> tuple[int, ...]:
    if len(word) <= _LONGEST:
        if len(table) >= _CACHED:
            table.clear()
        table[word] = ids
    return ids


def _parts(text: str) -> list[str] | None:
    """Returns the parts between white space, or None if the text has a mark of a word."""
    return None if WORD_START in text or _NOT_SPACES.search(text) else text.split()
