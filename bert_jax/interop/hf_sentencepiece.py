"""A SentencePiece model as a pipeline of Hugging Face's tokenizers library."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bert_jax.data.google_bert.tf_example import message_classes
from bert_jax.text.sentence_piece import WORD_START, SentencePieceTokenizer
from bert_jax.text.vocabulary import UNK

_BPE: Final = 2  # TrainerSpec.ModelType; 1 is a unigram model, and we train no other
# These two fields alone: the description that comes with sentencepiece wants a newer protobuf than
# TensorFlow Datasets allow.
_MODEL: Final[Any] = message_classes("""
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
# Below every piece of a text: a unigram model would else find "[unused1]" in a text that spells it.
_NEVER: Final = 1000.0


def sentencepiece_pipeline(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizers library's pipeline over the same pieces, scores and settings.

    docs/interop.md says on which text it differs from ours.
    Source: `SpmConverter` in Hugging Face transformers, `convert_slow_tokenizer.py`.
    """
    trainer, charsmap = _read(tokenizer.model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    scores = tokenizer.scores()  # of text's pieces alone
    if trainer == _BPE:
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
            normalizers.Precompiled(charsmap),
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
        # `Precompiled` puts letters of Hangul together again by two, not by three.
        yield normalizers.NFC()


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yields the pairs of pieces that make up another, in the order in which they are joined.

    A SentencePiece model has none: it joins whichever neighbours make the best piece.
    """
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = (pair for pair in halves if pair[0] in scores and pair[1] in scores)
        yield from sorted(known, key=lambda pair: (-scores[pair[0]], -scores[pair[1]]))


def _read(model: bytes) -> tuple[int, bytes]:
    """Returns the kind of a serialised ``ModelProto`` and its compiled normalisation."""
    parsed: Any = _MODEL.FromString(model)
    return parsed.trainer_spec.model_type, parsed.normalizer_spec.precompiled_charsmap
