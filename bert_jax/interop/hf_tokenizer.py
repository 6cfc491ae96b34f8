"""Hugging Face's tokenizer files, to our tokenizers and back."""

import json
from pathlib import Path
from typing import Final, Literal

import pydantic
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, shown
from bert_jax.interop.hf_sentencepiece import sentencepiece_pipeline
from bert_jax.section import Section
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentence_piece import MODEL_FILE, SentencePieceTokenizer
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.vocabulary import CLS, SEP, SPECIAL_PIECES, UNK, SpecialIds
from bert_jax.text.wordpiece import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    VOCAB_FILE,
    WordPieceTokenizer,
)
from bert_jax.validation import validate

FAST: Final = "tokenizer.json"
_INPUTS: Final = ["input_ids", "token_type_ids", "attention_mask"]


class _Lenient(Section):
    """Other keys are ignored."""

    model_config = pydantic.ConfigDict(extra="ignore")


class _WordPiece(_Lenient):
    type: Literal["WordPiece"]
    vocab: dict[str, int]


class _Normalizer(_Lenient):
    type: Literal["BertNormalizer"]
    lowercase: bool
    handle_chinese_chars: bool
    strip_accents: bool | None = None


class _AddedToken(_Lenient):
    id: int
    content: str


class _FastTokenizer(_Lenient):
    model: _WordPiece
    normalizer: _Normalizer
    added_tokens: tuple[_AddedToken, ...] = ()


def read_hf_tokenizer(directory: Path) -> Tokenizer:
    """Opens a checkpoint's tokenizer: vocab.txt and tokenizer_config.json, or tokenizer.json.

    If both vocabularies exist, they must be the same. A SentencePiece model is read as such, and
    tokenizer.json beside it is not. Raises UserError: none exists, they disagree, or it is not
    BERT's kind of WordPiece tokenizer.
    """
    fast = directory / FAST
    of_sentencepiece = (directory / MODEL_FILE).exists() and not (directory / VOCAB_FILE).exists()
    if of_sentencepiece or not fast.exists():
        return load_tokenizer(directory)
    read = _read_fast(fast)
    if (directory / VOCAB_FILE).exists():
        beside = load_tokenizer(directory)
        for what in ("lower_case", "strip_accents", "chinese"):
            here, there = getattr(read, what), getattr(beside, what)
            if here != there:
                raise UserError(
                    f"{fast}: {what} found {here}, but tokenizer_config.json says {there}"
                )
        if beside.hash != read.hash:
            raise UserError(f"{fast}: its vocabulary differs from {VOCAB_FILE} beside it")
    return read


def tokenizer_files(directory: Path) -> list[Path]:
    """Returns a checkpoint's files that its tokenizer is read from."""
    named = (directory / name for name in (VOCAB_FILE, CONFIG_FILE, MODEL_FILE, FAST))
    return [path for path in named if path.exists()]


def write_hf_tokenizer(directory: Path, tokenizer: Tokenizer, *, max_length: int) -> None:
    """Writes vocab.txt or spiece.model, tokenizer_config.json and tokenizer.json."""
    tokenizer.save(epath.Path(directory))
    added: dict[str, object] = {"model_max_length": max_length}
    if isinstance(tokenizer, SentencePieceTokenizer):
        # The class that takes tokenizer.json as it is. ALBERT's would make it anew from the pieces,
        # with [UNK] where ALBERT has it.
        added |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": _INPUTS}
        special = zip(SpecialIds._fields, SPECIAL_PIECES, strict=True)
        added |= {f"{name}_token": piece for name, piece in special}
        pipeline = sentencepiece_pipeline(tokenizer)
    else:
        assert isinstance(tokenizer, WordPieceTokenizer)
        pipeline = library_pipeline(tokenizer)
        pipeline.decoder = decoders.WordPiece(prefix=CONTINUATION)
    settings_file = epath.Path(directory) / CONFIG_FILE
    settings = read_json_object(settings_file) | added
    write_whole(settings_file, (json.dumps(settings, indent=2) + "\n").encode())
    _add_special(pipeline, tokenizer)
    write_whole(epath.Path(directory) / FAST, pipeline.to_str(pretty=True).encode())


def _read_fast(path: Path) -> WordPieceTokenizer:
    found = validate(_FastTokenizer, read_json_object(epath.Path(path)), source=str(path))
    vocabulary, normalizer = found.model.vocab, found.normalizer
    if not vocabulary or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(f"{path}: model.vocab: allowed: pieces with the ids 0, 1, 2, …")
    for added in found.added_tokens:
        if vocabulary.get(added.content) != added.id:
            raise UserError(
                f"{path}: added_tokens: found {shown(added.content)} with id {added.id}, allowed: "
                f"pieces of the vocabulary with their own ids"
            )
    return WordPieceTokenizer(
        sorted(vocabulary, key=vocabulary.__getitem__),
        lower_case=normalizer.lowercase,
        strip_accents=normalizer.strip_accents,
        chinese=normalizer.handle_chinese_chars,
        source=str(path),
    )


def library_pipeline(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizers library's BERT pipeline over the same vocabulary and settings.

    It differs from ours on characters that text rarely has; docs/interop.md lists them.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    pipeline = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: index for index, piece in enumerate(pieces)},
            unk_token=UNK,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
            continuing_subword_prefix=CONTINUATION,
        )
    )
    pipeline.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenizer.chinese,
        strip_accents=tokenizer.strip_accents,
        lowercase=tokenizer.lower_case,
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return pipeline


def _add_special(pipeline: tokenizers.Tokenizer, tokenizer: Tokenizer) -> None:
    """Makes a pipeline put special pieces around and between texts, and recognise them."""
    special = tokenizer.special
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, special.cls), (SEP, special.sep)],
    )
    pipeline.add_special_tokens([tokenizers.AddedToken(piece) for piece in SPECIAL_PIECES])
