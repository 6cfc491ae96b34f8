"""Hugging Face's tokenizer files, to our tokenizers and back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import pydantic
import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.google_bert.tf_example import message_classes
from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, shown
from bert_jax.section import Section
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentence_piece import MODEL_FILE, WORD_START, SentencePieceTokenizer
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
_BPE: Final = 2  # TrainerSpec.ModelType; 1 is a unigram model, and we train no other
# Two fields of a SentencePiece model. The description that comes with sentencepiece needs a newer
# protobuf than TensorFlow Datasets allows.
_SENTENCEPIECE: Final[Any] = message_classes("""
name: "bert_jax/sentencepiece_parts.proto" package: "sentencepiece" syntax: "proto2"
message_type {
  name: "Trainer" field { name: "model_type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type {
  name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type {
  name: "Model"
  field { name: "trainer_spec" number: 2 label: LABEL_OPTIONAL type_name: "Trainer" }
  field { name: "normalizer_spec" number: 3 label: LABEL_OPTIONAL type_name: "Normalizer" } }
""")["Model"]
# Below the score of every piece of a text. Otherwise a unigram model would find "[unused1]" in a
# text that spells it.
_NEVER: Final = 1000.0


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

    If both vocabularies exist, they must be the same. tokenizer.json beside a SentencePiece model
    is not read. Raises UserError: none exists, they disagree, or it is not BERT's kind of WordPiece
    tokenizer.
    """
    fast = directory / FAST
    of_sentencepiece = (directory / MODEL_FILE).exists() and not (directory / VOCAB_FILE).exists()
    if of_sentencepiece or not fast.exists():
        return load_tokenizer(directory)
    read = _read_fast(fast)
    if (directory / VOCAB_FILE).exists():
        beside = load_tokenizer(directory)
        for name in ("lower_case", "strip_accents", "chinese"):
            here, there = getattr(read, name), getattr(beside, name)
            if here != there:
                raise UserError(
                    "tokenizer.settings_differ",
                    "{name} is {found} here and {expected} in tokenizer_config.json",
                    place=fast,
                    name=name,
                    found=here,
                    expected=there,
                )
        if beside.hash != read.hash:
            raise UserError(
                "tokenizer.vocabularies_differ",
                "its vocabulary differs from vocab.txt in the same directory",
                place=fast,
            )
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
        # This class reads tokenizer.json. ALBERT's class would make another from the pieces, with
        # [UNK] in ALBERT's place.
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
        raise UserError(
            "tokenizer.ids", "allowed: pieces with the ids 0, 1, 2, …", place=f"{path}: model.vocab"
        )
    for added in found.added_tokens:
        if vocabulary.get(added.content) != added.id:
            raise UserError(
                "tokenizer.added_tokens",
                "found {found} with id {id}, allowed: pieces of the vocabulary with their own ids",
                place=f"{path}: added_tokens",
                found=shown(added.content),
                id=added.id,
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

    It differs from ours on rare characters; docs/interop.md lists them.
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
    """Adds special pieces to a pipeline: around and between texts, and inside a text."""
    special = tokenizer.special
    pipeline.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, special.cls), (SEP, special.sep)],
    )
    pipeline.add_special_tokens([tokenizers.AddedToken(piece) for piece in SPECIAL_PIECES])


def sentencepiece_pipeline(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizers library's pipeline over the same pieces, scores and settings.

    docs/interop.md lists the texts on which it differs from ours.
    Source: `SpmConverter` in Hugging Face transformers, `convert_slow_tokenizer.py`.
    """
    parsed: Any = _SENTENCEPIECE.FromString(tokenizer.model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    scores = tokenizer.scores()  # of text's pieces alone
    if parsed.trainer_spec.model_type == _BPE:
        model: models.Model = models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            list(_merges(scores)),
            unk_token=UNK,
            fuse_unk=True,
        )
    else:
        never = min(scores.values()) - _NEVER
        model = models.Unigram(
            [(piece, scores.get(piece, never)) for piece in pieces], unk_id=tokenizer.special.unk
        )
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = normalizers.Sequence(
        [
            *_fold(tokenizer),
            normalizers.Precompiled(parsed.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
        ]
    )
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, prepend_scheme="always")
    pipeline.decoder = decoders.Metaspace(WORD_START, prepend_scheme="always")
    return pipeline


def _fold(tokenizer: SentencePieceTokenizer) -> Iterator[normalizers.Normalizer]:
    """Yields the steps of `bert_jax.text.basic_tokenizer.fold`."""
    if tokenizer.lower_case:
        # `Lowercase` has no rule for a final sigma.
        yield normalizers.Replace(tokenizers.Regex(r"(?<=\p{L})Σ(?!\p{L})"), "ς")
        yield normalizers.Lowercase()
    if tokenizer.drops_accents:
        yield normalizers.NFD()
        # `StripAccents` drops vowel signs of Indic scripts (Mc) as well.
        yield normalizers.Replace(tokenizers.Regex(r"\p{Mn}"), "")
        # `Precompiled` joins two letters of Hangul, but not three.
        yield normalizers.NFC()


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the pairs of pieces that make up another, in the order in which they are joined.

    A SentencePiece model has no merges: it joins the neighbours that make the best piece.
    """
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = (pair for pair in halves if pair[0] in scores and pair[1] in scores)
        yield from sorted(known, key=lambda pair: (-scores[pair[0]], -scores[pair[1]]))
