"""Hugging Face's tokenizer files, to our WordPiece and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentence_piece import MODEL_FILE
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.vocabulary import CLS, SEP, SPECIAL_PIECES, UNK
from bert_jax.text.wordpiece import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    VOCAB_FILE,
    WordPieceTokenizer,
)

FAST: Final = "tokenizer.json"


def read_hf_tokenizer(directory: Path) -> Tokenizer:
    """Opens what a checkpoint brings: vocab.txt and tokenizer_config.json, or tokenizer.json.

    Where both vocabularies lie there, they must be the same.

    Raises:
        UserError: neither is there, they disagree, or it is no WordPiece tokenizer of BERT's.
    """
    fast = directory / FAST
    if not fast.exists():
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
    """Returns the files of a checkpoint that its tokenizer is read from."""
    named = (directory / name for name in (VOCAB_FILE, CONFIG_FILE, MODEL_FILE, FAST))
    return [path for path in named if path.exists()]


def write_hf_tokenizer(directory: Path, tokenizer: Tokenizer, *, max_length: int) -> None:
    """Writes vocab.txt, tokenizer_config.json and tokenizer.json, or the SentencePiece model.

    Args:
        directory: of the exported model.
        tokenizer: any of ours.
        max_length: positions of the model.
    """
    tokenizer.save(epath.Path(directory))
    if not isinstance(tokenizer, WordPieceTokenizer):
        return
    settings_file = epath.Path(directory) / "tokenizer_config.json"
    settings = read_json_object(settings_file) | {"model_max_length": max_length}
    write_whole(settings_file, (json.dumps(settings, indent=2) + "\n").encode())
    write_whole(epath.Path(directory) / FAST, _fast(tokenizer).to_str(pretty=True).encode())


def _read_fast(path: Path) -> WordPieceTokenizer:
    content = read_json_object(epath.Path(path))
    model, normalizer = content.get("model"), content.get("normalizer")
    if not isinstance(model, Mapping) or model.get("type") != "WordPiece":
        kind = model.get("type") if isinstance(model, Mapping) else model
        raise UserError(f"{path}: model.type found {kind!r}, allowed: WordPiece")
    if not isinstance(normalizer, Mapping) or normalizer.get("type") != "BertNormalizer":
        kind = normalizer.get("type") if isinstance(normalizer, Mapping) else normalizer
        raise UserError(f"{path}: normalizer.type found {kind!r}, allowed: BertNormalizer")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, Mapping) or sorted(vocabulary.values()) != list(
        range(len(vocabulary))
    ):
        raise UserError(f"{path}: model.vocab: allowed: pieces with the ids 0, 1, 2, …")
    for added in content.get("added_tokens", []):
        if vocabulary.get(added["content"]) != added["id"]:
            raise UserError(
                f"{path}: added_tokens: found {added['content']!r} with id {added['id']}, allowed: "
                f"pieces of the vocabulary with their own ids"
            )
    return WordPieceTokenizer(
        sorted(vocabulary, key=vocabulary.__getitem__),
        lower_case=_flag(normalizer, "lowercase", path),
        strip_accents=normalizer.get("strip_accents"),
        chinese=_flag(normalizer, "handle_chinese_chars", path),
        source=str(path),
    )


def _flag(normalizer: Mapping[str, Any], key: str, path: Path) -> bool:
    if not isinstance(found := normalizer.get(key), bool):
        raise UserError(f"{path}: normalizer.{key} found {found!r}, allowed: true, false")
    return found


def library_pipeline(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the library's own BERT pipeline over the same vocabulary and settings."""
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


def _fast(tokenizer: WordPieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the pipeline with the special pieces put around and between texts."""
    fast = library_pipeline(tokenizer)
    special = tokenizer.special
    fast.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, special.cls), (SEP, special.sep)],
    )
    fast.decoder = decoders.WordPiece(prefix=CONTINUATION)
    fast.add_special_tokens([tokenizers.AddedToken(piece) for piece in SPECIAL_PIECES])
    return fast
