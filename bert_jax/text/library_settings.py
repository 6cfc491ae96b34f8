"""Settings of Hugging Face's tokenizers that change ids: honoured or refused.

``tokenizer_config.json`` names a class. Some classes replace parts of the pipeline by their own,
others run code that no file describes. Source: the classes in Hugging Face transformers 4 and 5.
"""

from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object, shown
from bert_jax.text.bert_files import BERT_CLASSES
from bert_jax.text.pipeline_file import Spec
from bert_jax.text.special_rows import ROLE_SETTINGS, adds_special
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.vocabulary import SPECIAL_PIECES

SPECIAL_FILE: Final = "special_tokens_map.json"
_MODEL_CONFIG: Final = "config.json"
_CLASS: Final = "tokenizer_class"
_GENERIC: Final = ("PreTrained", "TokenizersBackend")  # they run tokenizer.json as it is
_BYTE_LEVEL: Final = ("Bart", "Longformer", "Roberta")
_UNIGRAM: Final = ("Albert", "Camembert", "XLMRoberta")
# Settings that would change ids or rows, with the only value that we implement.
_FIXED: Final[dict[str, Any]] = {
    "do_basic_tokenize": True,
    "do_subword_tokenize": True,
    "clean_text": True,
    "split_special_tokens": False,
    "truncation_side": "right",
}


def read_settings(root: epath.Path) -> dict[str, Any]:
    """Returns the settings of a directory, merged.

    Settings in ``tokenizer_config.json`` override ``special_tokens_map.json``. Without a class of
    the tokenizer, ``config.json`` may name it.
    """
    merged: dict[str, Any] = {}
    for name in (SPECIAL_FILE, CONFIG_FILE):
        if (root / name).exists():
            merged |= read_json_object(root / name)
    if merged.get(_CLASS) is None and (root / _MODEL_CONFIG).exists():
        merged[_CLASS] = read_json_object(root / _MODEL_CONFIG).get(_CLASS)
    return merged


def is_bert(settings: Mapping[str, Any]) -> bool:
    """Returns whether the settings name a class that builds BERT's pipeline."""
    return _stem(settings) in BERT_CLASSES


def check_settings(settings: Mapping[str, Any], root: epath.Path, *, pipeline: bool) -> None:
    """Raises UserError if a setting or the class changes ids in a way that we do not implement.

    `pipeline` is whether the directory has a ``tokenizer.json``, or RoBERTa's two files.
    """
    stem = _stem(settings)
    known = (*BERT_CLASSES, *_GENERIC, *_UNIGRAM, *(_BYTE_LEVEL if pipeline else ()))
    if stem is not None and stem not in known:
        raise UserError(
            "tokenizer.class",
            "found {found}, a class with code of its own. Only a tokenizer.json can replace it: "
            "add the model's tokenizer.json and set tokenizer_class to PreTrainedTokenizerFast.",
            place=f"{root}: {_CLASS}",
            found=shown(settings[_CLASS]),
        )
    for name, allowed in _FIXED.items():
        if settings.get(name, allowed) not in (None, allowed):
            raise _setting(root, name, settings[name], shown(allowed))
    never = settings.get("never_split") or ()
    if not isinstance(never, list | tuple) or any(each not in SPECIAL_PIECES for each in never):
        raise _setting(root, "never_split", never, "no words, or only special pieces")


def check_rows(settings: Mapping[str, Any], spec: Spec, source: str) -> None:
    """Raises UserError if Hugging Face writes rows without special pieces."""
    if "type" in settings or _stem(settings) not in _GENERIC:
        return
    changed = [name for name in ("add_bos_token", "add_eos_token") if name in settings]
    if changed or not adds_special(spec):
        raise UserError(
            "tokenizer.rows",
            "found {found}, so transformers writes rows without [CLS] or [SEP], which we always "
            "write. Allowed: TemplateProcessing, BertProcessing or RobertaProcessing"
            "{without}.",
            place=f"{source}: post_processor",
            found=changed or shown(spec["post_processor"]),
            without=" without these settings" if changed else "",
        )


def check_byte_level(settings: Mapping[str, Any], spec: Spec, source: str) -> None:
    """Raises UserError if a byte-level pipeline differs from the pipeline that its class builds."""
    part = spec["pre_tokenizer"] or {}
    if _stem(settings) in _BYTE_LEVEL:
        found = spec["normalizer"], part.get("type"), part.get("use_regex", True)
        if found != (None, "ByteLevel", True):
            raise UserError(
                "tokenizer.class_differs",
                "found {found}, but {tokenizer_class} in tokenizer_config.json replaces it by "
                "{expected}. If the model was trained with this file, set tokenizer_class to "
                "PreTrainedTokenizerFast.",
                place=f"{source}: normalizer, pre_tokenizer",
                found=shown([spec["normalizer"], spec["pre_tokenizer"]]),
                tokenizer_class=settings[_CLASS],
                expected="ByteLevel alone",
            )
    here, there = part.get("add_prefix_space"), settings.get("add_prefix_space")
    if part.get("type") == "ByteLevel" and there is not None and here != there:
        raise UserError(
            "tokenizer.settings_differ",
            "{name} is {found} here and {expected} in tokenizer_config.json",
            place=source,
            name="add_prefix_space",
            found=here,
            expected=there,
        )


def roles_of_bert(settings: Mapping[str, Any]) -> list[str]:
    """Returns the special pieces of a ``vocab.txt``, in the order of `SpecialIds`."""
    named = [settings.get(name) for name in ROLE_SETTINGS]
    named = [each.get("content") if isinstance(each, dict) else each for each in named]
    return [
        name if isinstance(name, str) else usual
        for name, usual in zip(named, SPECIAL_PIECES, strict=True)
    ]


def _stem(settings: Mapping[str, Any]) -> str | None:
    """Returns the name of the class without its endings: ``BertTokenizerFast`` -> ``Bert``."""
    found = settings.get(_CLASS)
    return None if found is None else str(found).removesuffix("Fast").removesuffix("Tokenizer")


def _setting(root: epath.Path, name: str, found: Any, allowed: str) -> UserError:
    return UserError(
        "tokenizer.setting",
        "found {found}, allowed: {allowed}{hint}",
        place=f"{root / CONFIG_FILE}: {name}",
        found=shown(found),
        allowed=allowed,
        hint="",
    )
