"""Reads ``spm.model``, the SentencePiece model of DeBERTaV3's checkpoints."""

from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_bytes
from bert_jax.text.class_pipelines import deberta_parts, with_defaults
from bert_jax.text.sentence_piece import WORD_START, open_model
from bert_jax.text.special_rows import content_of

SPM_FILE: Final = "spm.model"


def read_spm_file(path: epath.Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of the ``tokenizer.json`` that Hugging Face would make of the model.

    The model's special pieces and symbols are added tokens. So is [MASK], which DeBERTa's models
    lack: its id follows theirs. `settings` is the content of ``tokenizer_config.json``. Source:
    `SentencePieceExtractor` in Hugging Face transformers, `convert_slow_tokenizer.py`. Raises
    UserError if the file is no unigram model.
    """
    model = open_model(read_bytes(path), str(path))
    ids = range(model.vocab_size())
    pieces = [[model.id_to_piece(each), model.get_score(each)] for each in ids]
    if all(float(score).is_integer() for _, score in pieces):  # ranks of merges
        raise UserError(
            "tokenizer.not_unigram",
            "found no SentencePiece model of the type unigram, allowed: a model as in DeBERTaV3",
            place=path,
        )
    named = with_defaults(settings, "DebertaV2")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [
        {
            **{"id": each, "content": pieces[each][0], **flags},
            "special": model.is_control(each) or model.is_unknown(each),
        }
        for each in ids
        # Symbols have no probability.
        if pieces[each][1] == 0.0 and not model.is_byte(each) and not model.is_unused(each)
    ]
    mask = content_of(named["mask_token"], f"{path}: mask_token")
    if mask not in (piece for piece, _ in pieces):
        tokens.append({"id": len(pieces), "content": mask, **flags, "special": True})
    marks = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "always"}
    spec = {
        "added_tokens": tokens,
        "decoder": {**marks, "split": True},
        "model": {"unk_id": model.unk_id(), "vocab": pieces},
    }
    return {**spec, **deberta_parts(named, spec)}
