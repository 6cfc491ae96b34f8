"""Settings of Hugging Face's tokenizers that change ids: honoured or refused.

``tokenizer_config.json`` names a class, or the model's type in ``config.json`` stands for one. Some
classes run code that no file describes. Source: Hugging Face transformers 4 and 5, with
`TOKENIZER_MAPPING_NAMES` in `tokenization_auto.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError, commas
from bert_jax.files.read import read_json_object, shown
from bert_jax.text.added_tokens import DECODER, merge_special
from bert_jax.text.class_pipelines import FAMILIES
from bert_jax.text.pipeline_file import Spec
from bert_jax.text.pipeline_limits import parts_of
from bert_jax.text.special_rows import adds_special
from bert_jax.text.tokenizer import CONFIG_FILE
from bert_jax.text.vocabulary import SPECIAL_PIECES

SPECIAL_FILE: Final = "special_tokens_map.json"
_MODEL_CONFIG: Final = "config.json"
_CLASS: Final = "tokenizer_class"
_CODE: Final = "auto_map"  # names Python files beside the model
_AUTO: Final = "AutoTokenizer"
_GENERIC: Final = ("PreTrained", "TokenizersBackend")  # they run tokenizer.json as it is
_ROWS_OF_FILE: Final = (*_GENERIC, "Gemma")  # they write the rows of the file's post-processor
_OF_TYPE: Final = {
    **dict.fromkeys(("bert", "convbert", "distilbert", "electra", "layoutlm", "lxmert"), "Bert"),
    **dict.fromkeys(("megatron-bert", "mobilebert", "nomic_bert", "qdqbert", "retribert"), "Bert"),
    **dict.fromkeys(("squeezebert", "visual_bert"), "Bert"),
    **dict.fromkeys(("bart", "data2vec-text", "ibert", "lilt", "longformer", "mega"), "Roberta"),
    **dict.fromkeys(("mra", "roberta", "roberta-prelayernorm"), "Roberta"),
    **dict.fromkeys(("gte", "jina_embeddings_v3", "xlm-roberta", "xmod"), "XLMRoberta"),
    **dict.fromkeys(("albert", "yoso"), "Albert"),
    "camembert": "Camembert",
    "deberta-v2": "DebertaV2",
    "dpr": "DPRQuestionEncoder",
    # Classes that we do not implement.
    **{"bert-generation": "BertGeneration", "bert-japanese": "BertJapanese"},
    **{"bertweet": "Bertweet", "deberta": "Deberta"},
    **{"flaubert": "Flaubert", "funnel": "Funnel", "herbert": "Herbert", "mpnet": "MPNet"},
    **{"phobert": "Phobert", "rembert": "RemBert", "roc_bert": "RoCBert"},
    **{"splinter": "Splinter", "xlm": "XLM"},
}
# Settings that would change ids or rows, with the only value that we implement.
_FIXED: Final[dict[str, Any]] = {
    "do_basic_tokenize": True,
    "do_subword_tokenize": True,
    "clean_text": True,
    "split_special_tokens": False,
    "padding_side": "right",
    "truncation_side": "right",
    "fast_tokenizer_files": ["tokenizer.json"],  # otherwise the library's version chooses a file
}
# Settings of BERT's classes, by their names in the normalizer.
_OF_NORMALIZER: Final = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}


def read_settings(root: epath.Path) -> dict[str, Any]:
    """Returns the settings of a directory, merged.

    As in transformers, ``special_tokens_map.json`` overrides ``tokenizer_config.json``, unless the
    latter lists the added tokens. If neither names a class, ``config.json`` may name it, or the
    type of the model.
    """
    config = read_json_object(root / CONFIG_FILE) if (root / CONFIG_FILE).exists() else {}
    used = (root / SPECIAL_FILE).exists() and DECODER not in config
    special = read_json_object(root / SPECIAL_FILE) if used else {}
    merged = merge_special(config, special, place=str(root))
    if merged.get(_CLASS) is None and (root / _MODEL_CONFIG).exists():
        config = read_json_object(root / _MODEL_CONFIG)
        merged[_CLASS] = config.get(_CLASS)
        if merged[_CLASS] is None and (stem := _OF_TYPE.get(str(config.get("model_type")))):
            merged[_CLASS] = f"{stem}Tokenizer"
        merged.setdefault(_CODE, config.get(_CODE))
    return merged


def stem_of(settings: Mapping[str, Any]) -> str | None:
    """Returns the name of the class without its endings: ``BertTokenizerFast`` -> ``Bert``.

    Our own files have ``type``, and name no class that counts.
    """
    found = settings.get(_CLASS)
    if found is None or "type" in settings:
        return None
    return str(found).removesuffix("Fast").removesuffix("Tokenizer")


def check_settings(settings: Mapping[str, Any], root: epath.Path, *, pipeline: bool) -> None:
    """Raises UserError if a setting or the class changes ids in a way that we do not implement.

    `pipeline` is whether the directory has a ``tokenizer.json``, or files that stand for one.
    """
    stem, code = stem_of(settings), settings.get(_CODE)
    if stem is None and (isinstance(code, list) or (isinstance(code, dict) and _AUTO in code)):
        raise _own_code(root, _CODE, code)
    known = [*_GENERIC, *(name for name, each in FAMILIES.items() if pipeline or each.slow)]
    if stem is not None and stem not in known:
        raise _own_code(root, _CLASS, settings[_CLASS])
    for name, allowed in _FIXED.items():
        if settings.get(name, allowed) not in (None, allowed):
            raise _setting(root, name, settings[name], shown(allowed))
    never = settings.get("never_split") or ()
    if not isinstance(never, list | tuple) or any(each not in SPECIAL_PIECES for each in never):
        raise _setting(root, "never_split", never, "no words, or only special pieces")


def check_rows(settings: Mapping[str, Any], spec: Spec, source: str) -> None:
    """Raises UserError if Hugging Face writes rows without special pieces."""
    if "type" in settings or stem_of(settings) not in _ROWS_OF_FILE:
        return
    changed = [name for name in ("add_bos_token", "add_eos_token") if name in settings]
    if changed or not adds_special(spec):
        found = commas(changed or shown(spec["post_processor"]))
        without = " without these settings" if changed else ""
        raise UserError(
            "tokenizer.rows",
            f"found {found}, which writes no [CLS] or [SEP], allowed: TemplateProcessing, "
            f"BertProcessing or RobertaProcessing{without}",
            place=f"{source}: post_processor",
        )


def check_flags(settings: Mapping[str, Any], spec: Spec, source: str) -> None:
    """Raises UserError if a setting contradicts the pipeline of a file that no class replaces."""
    if stem_of(settings) in FAMILIES:
        return
    here = {**(spec["normalizer"] or {})}
    named = dict(_OF_NORMALIZER) if here.get("type") == "BertNormalizer" else {}
    for part in parts_of(spec["pre_tokenizer"], "pretokenizers"):
        if part.get("type") == "ByteLevel":
            here |= part
            named["add_prefix_space"] = "add_prefix_space"
    for name, setting in named.items():
        there = settings.get(setting)
        if there is not None and here.get(name) != there:
            raise UserError(
                "tokenizer.settings_differ",
                f"{setting} is {here.get(name)} here and {there} in tokenizer_config.json",
                place=source,
            )


def _own_code(root: epath.Path, name: str, found: Any) -> UserError:
    return UserError(
        "tokenizer.class",
        f"found {shown(found)}, which has code of its own. Add its tokenizer.json, and set "
        "tokenizer_class to PreTrainedTokenizerFast.",
        place=f"{root}: {name}",
    )


def _setting(root: epath.Path, name: str, found: Any, allowed: str) -> UserError:
    return UserError.wrong(
        "tokenizer.setting", shown(found), allowed, place=f"{root / CONFIG_FILE}: {name}"
    )
