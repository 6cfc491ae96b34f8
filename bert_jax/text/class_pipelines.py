"""The pipelines that Hugging Face's classes of tokenizers build around the pieces of a file.

A class of transformers 5 takes only pieces and merges from ``tokenizer.json``, and builds the other
parts by its settings. transformers 4 runs most parts of the file. So a file is read only if both
give the same ids. Source: `tokenization_*.py` of the models in Hugging Face transformers 5.23.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import tokenizers

from bert_jax.errors import UserError
from bert_jax.files.read import shown
from bert_jax.text import pipeline_file
from bert_jax.text.bert_files import BERT_CLASSES, LIBRARY_WORD_CHARACTERS, bert_parts
from bert_jax.text.pipeline_file import Roles, Spec
from bert_jax.text.pipeline_limits import parts_of
from bert_jax.text.special_rows import ROLE_SETTINGS, adds_special, content_of, rows_of
from bert_jax.text.vocabulary import SPECIAL_PIECES, SpecialPieces

_PARTS: Final = ("normalizer", "pre_tokenizer", "model")
_ROBERTA_PIECES: Final = SpecialPieces("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_GEMMA_PIECES: Final = SpecialPieces("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
_ALBERT_PIECES: Final = SpecialPieces("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
# Text that shows the difference between two pipelines. No text ends with a space: there, files of
# XLM-R from different versions of transformers differ, and the class decides.
_PROBES: Final = (
    "Élan naïve Größe ΟΔΟΣ İstanbul Mixed CASE cafe\u0301",
    "x1984 3.14 don't (a-b) U.S.A. _a_ $5 @user #tag e.g.,the;end",
    "  two\n\tlines  and   more",
    "東京都 ｶﾞ 한국어 हिन्दी ภาษาไทย Привет العربية",
    "ﬁ ² ½ Ⅳ ™ ``quoted'' \u2028 \u200bzero\u00adwidth\u0007\ufffdx",
    "😀👍🏽 \U0001f9d1\u200d\U0001f680 \U0010fffd",
    "a" * 150,
)
_SAMPLE: Final = 400  # pieces of the vocabulary that are compared


class _Family(NamedTuple):
    """The parts and rows that a group of classes builds."""

    model: str
    pieces: SpecialPieces
    separators: int
    parts: Callable[[Mapping[str, Any], Spec], Spec]
    slow: bool = True  # whether we read its older files, too: vocab.txt, spiece.model or spm.model


def with_defaults(settings: Mapping[str, Any], stem: str | None) -> dict[str, Any]:
    """Returns settings with the special pieces that a class has by default."""
    family = FAMILIES.get(stem or "")
    if family is None:
        return dict(settings)
    named = dict(zip(ROLE_SETTINGS, family.pieces, strict=True))
    return {**settings, **{role: settings.get(role) or piece for role, piece in named.items()}}


def as_class(
    stem: str | None,
    settings: Mapping[str, Any],
    spec: Spec,
    roles: Roles,
    separators: int,
    *,
    source: str,
) -> Spec:
    """Returns the pipeline that a class builds from the pieces of a file.

    Args:
        stem: name of the class without its endings, such as ``Bert``. A class that is not in
            `FAMILIES` changes nothing.
        settings: content of ``tokenizer_config.json``, with the class's defaults.
        spec: the file.
        roles: the special pieces.
        separators: number of separators between the texts of a pair in the file.
        source: name of the file in errors.

    Raises:
        UserError: the file and the class give a text different ids, or write other rows.
    """
    family = FAMILIES.get(stem or "")
    if family is None:
        return spec
    name = settings.get("tokenizer_class") or f"{stem}Tokenizer"
    if (kind := spec["model"]["type"]) != family.model:
        raise _differs(f"{source}: model.type", kind, name, family.model)
    if adds_special(spec) and separators != family.separators:
        place = f"{source}: post_processor"
        raise _differs(place, f"{separators} separators", name, f"{family.separators}")
    ends = (("bos_token", family.pieces.cls), ("eos_token", family.pieces.sep))
    around = [content_of(settings.get(end), end) or usual for end, usual in ends]
    if family.parts in (_unigram, _camembert, _gemma) and around != [roles.cls, roles.sep]:
        place = f"{source}: post_processor"
        raise _differs(place, " ".join((roles.cls, roles.sep)), name, " ".join(around))
    built = {**spec, **family.parts(settings, spec)}
    here, there = _options(spec, source), _options(built, source)
    changed = [part for part in _PARTS if here[part] != there[part]]
    if changed:
        pipelines = [_bare(each, source) for each in (spec, built)]
        for text in _probes(spec):
            ids, expected = (pipeline.encode(text).ids for pipeline in pipelines)
            if ids != expected:
                part = changed[0]
                # SentencePiece's table is long.
                found, wanted = (
                    re.sub(r', "precompiled_charsmap": "[^"]*"', "", json.dumps(each[part]))[:200]
                    for each in (here, there)
                )
                raise _differs(f"{source}: {part}", found, name, wanted, example=shown(text))
        spec = built
    rows = rows_of(roles, pipeline_file.pieces_of(spec), family.separators)
    return {**spec, "post_processor": rows}


def _differs(
    place: str, found: str, name: Any, expected: str, example: str | None = None
) -> UserError:
    texts = "" if example is None else f", with other ids for {example}"
    return UserError(
        "tokenizer.class_differs",
        f"found {found}, but {name} replaces it by {expected}{texts}. "
        "Set tokenizer_class to PreTrainedTokenizerFast if the model used this file.",
        place=place,
    )


def _options(spec: Spec, source: str) -> dict[str, Any]:
    """Returns the parts that determine ids, with the library's defaults and without pieces."""
    model = {name: value for name, value in spec["model"].items() if name != "merges"}
    unknown = model.get("unk_id")
    if model["type"] == "Unigram":
        model |= {"vocab": [["x", 0.0]], "unk_id": 0}
    else:
        model |= {"vocab": {str(model.get("unk_token")): 0}}
    if model["type"] == "BPE":
        model["merges"] = []
    whole = json.loads(_bare({**spec, "model": model}, source).to_str())
    whole["model"] |= {"unk_id": unknown, "vocab": None}
    return whole


def _bare(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """Opens a pipeline without added tokens and rows."""
    bare = {**spec, "added_tokens": [], "post_processor": None}
    return pipeline_file.open_pipeline(bare, source)


def _probes(spec: Spec) -> Iterator[str]:
    """Yields texts that show a difference between pipelines, also of pieces of the vocabulary."""
    yield from _PROBES
    pieces = list(pipeline_file.pieces_of(spec))
    drawn = pieces[:: max(1, len(pieces) // _SAMPLE)]
    words = [piece.removeprefix("##").strip("Ġ▁") for piece in drawn]
    yield " ".join(words)
    yield "".join(words)


def _wordpiece(settings: Mapping[str, Any], spec: Spec) -> Spec:
    chinese = settings.get("tokenize_chinese_chars")
    return bert_parts(
        spec["model"]["vocab"],
        lower_case=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        chinese=chinese is not False,
        longest=LIBRARY_WORD_CHARACTERS,
        unknown=content_of(settings["unk_token"], "unk_token"),
    )


def _byte_level(settings: Mapping[str, Any], spec: Spec) -> Spec:
    prefix = settings.get("add_prefix_space") is True
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True},
        "model": {
            **{name: spec["model"][name] for name in ("type", "vocab", "merges")},
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
        },
    }


def _gemma(settings: Mapping[str, Any], spec: Spec) -> Spec:
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {**split, "invert": False},
        "model": {
            **{name: spec["model"][name] for name in ("type", "vocab", "merges")},
            "unk_token": content_of(settings["unk_token"], "unk_token"),
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _unigram(settings: Mapping[str, Any], spec: Spec, *, unknown: int = 3) -> Spec:
    prefix = "never" if settings.get("add_prefix_space") is False else "always"
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prefix, "split": True}
    return {
        "normalizer": next(_tables(spec), None),
        "pre_tokenizer": _sequence("pretokenizers", {"type": "WhitespaceSplit"}, marks),
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": spec["model"]["vocab"]},
    }


def _camembert(settings: Mapping[str, Any], spec: Spec) -> Spec:
    unknown = content_of(settings["unk_token"], "unk_token")
    pieces = [piece for piece, _ in spec["model"]["vocab"]]
    return _unigram(settings, spec, unknown=pieces.index(unknown) if unknown in pieces else 0)


def _albert(settings: Mapping[str, Any], spec: Spec) -> Spec:
    quotes = [
        {"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")
    ]
    accents = [{"type": "NFKD"}, {"type": "StripAccents"}]
    steps = [
        *quotes,
        *([] if settings.get("keep_accents") is True else accents),
        *([] if settings.get("do_lower_case") is False else [{"type": "Lowercase"}]),
        *_tables(spec),
    ]
    parts = _unigram(settings, spec, unknown=1)
    return parts | {"normalizer": _sequence("normalizers", *steps)}


def deberta_parts(settings: Mapping[str, Any], spec: Spec) -> Spec:
    """Returns the parts that `DebertaV2Tokenizer` builds, for settings with its defaults."""
    prefix = "first" if settings.get("add_prefix_space") is False else "always"
    marks = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": prefix, "split": True}
    split = {"type": "Punctuation", "behavior": "Isolated"}
    spaces = {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "}
    end = {"type": "Strip", "strip_left": False, "strip_right": True}
    lower = [{"type": "Lowercase"}] if settings.get("do_lower_case") is True else []
    unknown = [content_of(settings["unk_token"], "unk_token"), 0.0]
    pieces = [list(each) for each in spec["model"]["vocab"]]
    return {
        "normalizer": _sequence("normalizers", *lower, spaces, {"type": "NFC"}, end),
        "pre_tokenizer": _sequence(
            "pretokenizers", *([split] if settings.get("split_by_punct") is True else []), marks
        ),
        "model": {
            "type": "Unigram",
            "unk_id": pieces.index(unknown) if unknown in pieces else spec["model"]["unk_id"],
            "vocab": pieces,
        },
    }


def _tables(spec: Spec) -> Iterator[Mapping[str, Any]]:
    """Yields SentencePiece's normalisation of a file, if it has one."""
    for part in parts_of(spec["normalizer"], "normalizers"):
        if part.get("type") == "Precompiled":
            yield part
            return


def _sequence(inner: str, *steps: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", inner: list(steps)}


FAMILIES: Final[dict[str, _Family]] = {
    **dict.fromkeys(BERT_CLASSES, _Family("WordPiece", SPECIAL_PIECES, 1, _wordpiece)),
    **dict.fromkeys(
        ("Bart", "Longformer", "Roberta"),
        _Family("BPE", _ROBERTA_PIECES, 2, _byte_level, slow=False),
    ),
    "XLMRoberta": _Family("Unigram", _ROBERTA_PIECES, 2, _unigram),
    "Camembert": _Family("Unigram", _ROBERTA_PIECES, 2, _camembert),
    "Albert": _Family("Unigram", _ALBERT_PIECES, 1, _albert),
    "Gemma": _Family("BPE", _GEMMA_PIECES, 1, _gemma, slow=False),
    "DebertaV2": _Family("Unigram", SPECIAL_PIECES, 1, deberta_parts),
}
"""The pipeline of each class, by its name without ``Tokenizer`` and ``Fast``."""
