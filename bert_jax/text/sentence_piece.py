"""SentencePiece models (unigram or BPE) with BERT's special pieces."""

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import sentencepiece
from etils import epath

from bert_jax.errors import UserError
from bert_jax.text.basic_tokenizer import UNICODE_VERSION, fold
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.word_starts import WordBounds

MODEL_FILE = "spiece.model"
WORD_START = "▁"
_SURROGATE = re.compile("[\ud800-\udfff]")


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model.

    Lower-casing and dropping accents, if set, come before the model's own normalisation (NFKC).
    Special pieces are control symbols of the model, so text such as ``[SEP]`` never has their ids.
    """

    def __init__(
        self,
        model: bytes,
        *,
        lower_case: bool,
        strip_accents: bool | None = None,
        source: str = MODEL_FILE,
    ) -> None:
        """Opens a serialised ``ModelProto`` with settings.

        ``source`` is the model's name in errors. Raises UserError if the bytes are not a
        SentencePiece model or a special piece is missing.
        """
        self.model = model
        self.drops_accents = lower_case if strip_accents is None else strip_accents
        self._model = open_model(model, source)
        super().__init__(
            [self._model.id_to_piece(i) for i in range(self._model.vocab_size())],
            lower_case=lower_case,
            strip_accents=strip_accents,
            source=source,
        )
        self.ends_word = WordBounds.of(map(self._bytes_of_word, range(self.vocab_size)))
        self.is_continuation = self.ends_word.continues
        self.hash = _hash(model, lower_case=lower_case, strip_accents=self.drops_accents)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of ``text``. Lone surrogates are encoded as spaces."""
        prepared = prepare(text, lower_case=self.lower_case, strip_accents=self.drops_accents)
        return self._model.encode(prepared, out_type=int)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text with special pieces, but without padding."""
        self.pieces(ids)  # raises UserError for unknown ids
        parts: list[str] = []
        run: list[int] = []
        for token_id in ids:
            if not self._is_reserved(token_id):
                run.append(token_id)
                continue
            parts.append(self._model.decode(run))
            run = []
            if token_id != self.special.pad:
                parts.append(self._vocabulary[token_id])
        parts.append(self._model.decode(run))
        return " ".join(part for part in parts if part)

    def scores(self) -> dict[str, float]:
        """Returns the score of every ordinary piece: its log-probability or rank."""
        return {
            piece: self._model.get_score(token_id)
            for token_id, piece in enumerate(self._vocabulary)
            if not self._is_reserved(token_id)
        }

    def save(self, directory: epath.PathLike) -> None:
        """Writes ``spiece.model`` and ``tokenizer_config.json``."""
        settings = {
            "type": "sentencepiece",
            "tokenizer_class": "AlbertTokenizer",
            "do_lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
            "keep_accents": not self.drops_accents,
        }
        self._write(directory, MODEL_FILE, self.model, settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the serialised model and the settings, for worker processes."""
        settings = {"lower_case": self.lower_case, "strip_accents": self.strip_accents}
        return functools.partial(type(self), **settings), (self.model,)

    def _bytes_of_word(self, token_id: int) -> bytes | None:
        if self._model.is_unknown(token_id):
            return b""  # the rest of its word may be known
        if self._is_reserved(token_id):
            return None
        piece = self._vocabulary[token_id]
        if self._model.is_byte(token_id):  # such as <0xE4>
            return bytes.fromhex(piece[3:-1])
        return piece.replace(WORD_START, " ").encode()

    def _is_reserved(self, token_id: int) -> bool:
        model = self._model
        return model.is_control(token_id) or model.is_unknown(token_id) or model.is_unused(token_id)


def prepare(text: str, *, lower_case: bool, strip_accents: bool) -> str:
    """Returns the folded text, the model's input in training and in `encode`.

    SentencePiece refuses lone surrogates, so they become spaces. The model's normalisation also
    turns U+FFFD into a space.
    """
    folded = fold(text, lower_case=lower_case, strip_accents=strip_accents)
    return folded if folded.isascii() else _SURROGATE.sub(" ", folded)


def open_model(model: bytes, source: str) -> sentencepiece.SentencePieceProcessor:
    """Opens a serialised model. Raises UserError if the bytes are no model."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        if not model:
            raise RuntimeError("empty")
        processor.LoadFromSerializedProto(model)
    except RuntimeError:
        raise UserError(
            "tokenizer.not_sentencepiece",
            f"found {len(model)} bytes that are no SentencePiece model",
            place=source,
        ) from None
    return processor


def _hash(model: bytes, *, lower_case: bool, strip_accents: bool) -> str:
    settings = {
        "type": "sentencepiece",
        "lower_case": lower_case,
        "strip_accents": strip_accents,
        "unicode": UNICODE_VERSION,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode("ascii"))
    digest.update(model)
    return digest.hexdigest()
