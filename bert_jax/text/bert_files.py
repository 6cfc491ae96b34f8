"""BERT's pipeline in the form of a ``tokenizer.json``, and the files that our WordPiece runs.

Source: `BertTokenizer` in Hugging Face transformers, `tokenization_bert.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.files.read import shown
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
# Settings of the class, with their defaults, by their names in the normalizer.
_SETTINGS: Final = {
    "lowercase": ("do_lower_case", True),
    "strip_accents": ("strip_accents", None),
    "handle_chinese_chars": ("tokenize_chinese_chars", True),
}


def bert_pipeline(
    pieces: Sequence[str],
    *,
    lower_case: bool,
    strip_accents: bool | None,
    chinese: bool,
    longest: int,
    roles: Sequence[str],
) -> dict[str, Any]:
    """Returns the content of the ``tokenizer.json`` of a ``vocab.txt``.

    A word with more than `longest` characters is unknown. `roles` are the special pieces, in the
    order of `SpecialIds`, and occur among the pieces.
    """
    ids = {piece: number for number, piece in enumerate(pieces)}
    _, unknown, cls, sep, _ = roles
    return {
        "normalizer": _normalizer(lower_case, strip_accents, chinese),
        "pre_tokenizer": _PRE_TOKENIZER,
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": _model(unknown, longest) | {"vocab": ids},
        "post_processor": {
            "type": "BertProcessing",
            "sep": [sep, ids[sep]],
            "cls": [cls, ids[cls]],
        },
    }


def own_wordpiece(
    spec: Spec, roles: Roles, separators: int, *, source: str
) -> WordPieceTokenizer | None:
    """Returns our own tokenizer if it runs every part of a pipeline, otherwise None.

    `spec` is complete, as the library writes it. It has no part beside those compared here: the
    caller has read the rows of the post-processor, and the decoder changes no ids.
    """
    model, normalizer = spec["model"], spec["normalizer"] or {}
    flags: list[Any] = [normalizer.get(name) for name in _SETTINGS]
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
        source=source,
    )


def check_bert_class(settings: Mapping[str, Any], spec: Spec, *, named: bool, source: str) -> None:
    """Raises UserError if a pipeline differs from the pipeline that BERT's class builds.

    Args:
        settings: content of ``tokenizer_config.json``.
        spec: complete pipeline of ``tokenizer.json``.
        named: whether the settings name a class of `BERT_CLASSES`. Its defaults count then.
        source: name of the file in errors.
    """
    normalizer = spec["normalizer"] or {}
    if named:
        kinds = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}
        for part, kind in kinds.items():
            found = spec[part] and spec[part]["type"]
            if found != kind:
                raise UserError(
                    "tokenizer.class_differs",
                    "found {found}, but {tokenizer_class} in tokenizer_config.json replaces it by "
                    "{expected}. If the model was trained with this file, set tokenizer_class to "
                    "PreTrainedTokenizerFast.",
                    place=f"{source}: {part}",
                    found=shown(found),
                    tokenizer_class=settings.get("tokenizer_class"),
                    expected=kind,
                )
    if normalizer.get("type") != "BertNormalizer":
        return
    for name, (setting, default) in _SETTINGS.items():
        there = settings.get(setting)
        if there is None and not named:
            continue
        here, there = normalizer.get(name), default if there is None else there
        if here != there and (name != "strip_accents" or _strips(here, normalizer, there)):
            raise UserError(
                "tokenizer.settings_differ",
                "{name} is {found} here and {expected} in tokenizer_config.json",
                place=source,
                name=setting,
                found=here,
                expected=there,
            )


def _strips(here: bool | None, normalizer: Mapping[str, Any], there: bool | None) -> bool:
    """Returns whether two values of `strip_accents` differ. None stands for ``lowercase``."""
    lower_case = normalizer.get("lowercase")
    return (lower_case if here is None else here) != (lower_case if there is None else there)


def _normalizer(lower_case: Any, strip_accents: Any, chinese: Any) -> dict[str, Any]:
    return {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": chinese,
        "strip_accents": strip_accents,
        "lowercase": lower_case,
    }


def _model(unknown: str, longest: Any) -> dict[str, Any]:
    return {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": CONTINUATION,
        "max_input_chars_per_word": longest,
    }
