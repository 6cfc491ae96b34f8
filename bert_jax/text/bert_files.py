"""BERT's pipeline in the form of a ``tokenizer.json``, and the files that our WordPiece runs.

Source: `BertTokenizer` in Hugging Face transformers, `tokenization_bert.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.text.pipeline_file import Roles, Spec
from bert_jax.text.vocabulary import SPECIAL_PIECES, UNK, in_order_of_ids
from bert_jax.text.wordpiece import CONTINUATION, WordPieceTokenizer

LIBRARY_WORD_CHARACTERS: Final = 100
"""Maximum length of a word in Hugging Face's tokenizers of BERT."""
BERT_CLASSES: Final = (
    *("Bert", "ConvBert", "DistilBert", "DPRContextEncoder", "DPRQuestionEncoder", "Electra"),
    *("LayoutLM", "Lxmert", "MobileBert", "RetriBert", "SqueezeBert"),
)
"""Classes of tokenizers that build BERT's pipeline from the vocabulary and the settings."""
_PRE_TOKENIZER: Final = {"type": "BertPreTokenizer"}
_FLAGS: Final = ("lowercase", "strip_accents", "handle_chinese_chars")


def bert_parts(
    vocabulary: Mapping[str, int],
    *,
    lower_case: bool,
    strip_accents: bool | None,
    chinese: bool,
    longest: int,
    unknown: str | None,
) -> dict[str, Any]:
    """Returns the parts of a ``tokenizer.json`` that determine the ids of BERT's pipeline.

    A word with more than `longest` characters has the id of the piece `unknown`.
    """
    return {
        "normalizer": _normalizer(lower_case, strip_accents, chinese),
        "pre_tokenizer": _PRE_TOKENIZER,
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": _model(unknown, longest) | {"vocab": vocabulary},
    }


def own_wordpiece(
    spec: Spec, roles: Roles, separators: int, *, final_sigma: bool, source: str
) -> WordPieceTokenizer | None:
    """Returns our own tokenizer if it runs every part of a pipeline, otherwise None.

    For `final_sigma` see `WordSplitter`. `spec` is complete, as the library writes it. It has no
    part beside those compared here: the caller has read the rows of the post-processor, and the
    decoder changes no ids.
    """
    model, normalizer = spec["model"], spec["normalizer"] or {}
    flags: list[Any] = [normalizer.get(name) for name in _FLAGS]
    longest = model.get("max_input_chars_per_word")
    parts = {name: value for name, value in model.items() if name != "vocab"}
    if (
        normalizer != _normalizer(*flags)
        or spec["pre_tokenizer"] != _PRE_TOKENIZER
        or parts != _model(UNK, longest)
        or (tuple(roles), separators) != (tuple(SPECIAL_PIECES), 1)
        or any(token["content"] not in SPECIAL_PIECES for token in spec["added_tokens"])
        or any(token["content"] not in model["vocab"] for token in spec["added_tokens"])
    ):
        return None
    return WordPieceTokenizer(
        in_order_of_ids(model["vocab"], place=f"{source}: model.vocab"),
        lower_case=flags[0],
        strip_accents=flags[1],
        chinese=flags[2],
        max_word_characters=longest,
        final_sigma=final_sigma,
        source=source,
    )


def _normalizer(lower_case: Any, strip_accents: Any, chinese: Any) -> dict[str, Any]:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": chinese,
        "strip_accents": strip_accents,
        "lowercase": lower_case,
    }


def _model(unknown: str | None, longest: Any) -> dict[str, Any]:
    return {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": CONTINUATION,
        "max_input_chars_per_word": longest,
    }
