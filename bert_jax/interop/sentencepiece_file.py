"""Reads SentencePiece models without the sentencepiece package, and makes ALBERT's tokenizer."""

import base64
from pathlib import Path
from typing import Any, Final

from etils import epath
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert.tf_example import message_classes
from bert_jax.errors import UserError
from bert_jax.files.read import read_bytes
from bert_jax.text.library_tokenizer import LibraryTokenizer, read_pipeline
from bert_jax.text.sentence_piece import WORD_START

UNIGRAM: Final = 1
BPE: Final = 2
"""Values of the enum TrainerSpec.ModelType."""
_UNKNOWN: Final = 2  # value of the enum SentencePiece.Type

# The fields that we read from a SentencePiece model. The full definition in the sentencepiece
# package needs a newer protobuf than TensorFlow Datasets allows.
_MODEL: Final[Any] = message_classes("""
name: "bert_jax/sentencepiece_parts.proto" package: "sentencepiece" syntax: "proto2"
message_type {
  name: "Piece"
  field { name: "piece" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "score" number: 2 label: LABEL_OPTIONAL type: TYPE_FLOAT }
  field { name: "type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type {
  name: "Trainer" field { name: "model_type" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type {
  name: "Normalizer"
  field { name: "precompiled_charsmap" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type {
  name: "Model"
  field { name: "pieces" number: 1 label: LABEL_REPEATED type_name: "Piece" }
  field { name: "trainer_spec" number: 2 label: LABEL_OPTIONAL type_name: "Trainer" }
  field { name: "normalizer_spec" number: 3 label: LABEL_OPTIONAL type_name: "Normalizer" } }
""")["Model"]

# google-research/albert splits pieces such as "1990," again, without the comma. With this penalty,
# the unigram model never chooses them. Source: `AlbertConverter` in Hugging Face transformers.
_COMMA_PENALTY: Final = 100.0

_SETTINGS: Final = {
    **{"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "[MASK]"},
    **{"cls_token": "[CLS]", "sep_token": "[SEP]"},
}


def parse_model(model: bytes) -> Any:
    """Returns a SentencePiece model's pieces, type and character map as a protobuf message."""
    return _MODEL.FromString(model)


def read_albert_model(path: Path, *, lower_case: bool) -> LibraryTokenizer:
    """Returns the tokenizer of google-research/albert for a SentencePiece model.

    Args:
        path: the model.
        lower_case: whether text is lower-cased.

    Raises:
        UserError: the file is no unigram model with ALBERT's special pieces.
    """
    try:
        model = parse_model(read_bytes(epath.Path(path)))
    except DecodeError:
        model = _MODEL()
    kind = model.trainer_spec.model_type or UNIGRAM
    if not model.pieces or kind != UNIGRAM:
        raise UserError("tokenizer.not_unigram", "no unigram model of SentencePiece", place=path)
    return read_pipeline(_pipeline(model, lower_case=lower_case), _SETTINGS, source=str(path))


def _pipeline(model: Any, *, lower_case: bool) -> dict[str, Any]:
    """Returns the content of a tokenizer.json.

    Source: `preprocess_text` and `encode_pieces` of google-research/albert, `tokenization.py`.
    """
    unknown = next((at for at, piece in enumerate(model.pieces) if piece.type == _UNKNOWN), None)
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    marks = {"replacement": WORD_START, "prepend_scheme": "always", "split": True}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKD"},
                {"type": "Replace", "pattern": {"Regex": r"\p{Mn}"}, "content": ""},
                *([{"type": "Lowercase"}] if lower_case else []),
                *([{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []),
                {"type": "Strip", "strip_left": True, "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
            ],
        },
        "pre_tokenizer": {"type": "Metaspace", **marks},
        "decoder": {"type": "Metaspace", **marks},
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [[each.piece, each.score - _penalty(each.piece)] for each in model.pieces],
            "byte_fallback": False,
        },
    }


def _penalty(piece: str) -> float:
    return _COMMA_PENALTY if piece[-1:] == "," and piece[-2:-1].isdigit() else 0.0
