"""Reads ``tokenizer.json`` and the settings beside it: special pieces by role, separators of pairs.

The format is the ``tokenizers`` library's. RoBERTa, XLM-R, CamemBERT and ModernBERT have it, and
so do newer files of BERT.
"""

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, Literal, NamedTuple

import tokenizers

from bert_jax.errors import UserError
from bert_jax.files.read import shown
from bert_jax.narration import tell
from bert_jax.text.vocabulary import CLS, MASK, PAD, SEP, UNK, SpecialIds

Spec = dict[str, Any]
Marks = Literal["bytes", "metaspace", "prefix"]

# Settings of Hugging Face for each role, in order of precedence.
_SETTINGS: Final = {
    "pad": ("pad_token",),
    "unk": ("unk_token",),
    "cls": ("cls_token", "bos_token"),
    "sep": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
}
ROLE_SETTINGS: Final = tuple(names[0] for names in _SETTINGS.values())
"""Settings that name the special pieces, in the order of `SpecialIds`."""
# Spellings of BERT and RoBERTa, for a directory without these settings.
_CONVENTIONS: Final = (
    dict(zip(SpecialIds._fields, (PAD, UNK, CLS, SEP, MASK), strict=True)),
    {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
)
# Classes of tokenizers that write two separators between the texts of a pair.
_TWO_SEPARATORS: Final = ("Roberta", "XLMRoberta", "Camembert")
LIBRARY_MODELS: Final = ("BPE", "Unigram", "WordPiece")
# Steps that divide text at white space, so that a piece never contains a space.
_SPLIT_AT_SPACES: Final = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
MASKS: Final = tuple(spelling["mask"] for spelling in _CONVENTIONS)


class Roles(NamedTuple):
    """Texts of the special pieces. `unk` is None if the model encodes every text without it."""

    pad: str
    unk: str | None
    cls: str
    sep: str
    mask: str


def pieces_of(spec: Spec) -> dict[str, int]:
    """Returns the id of each piece of the model and of each added token."""
    vocabulary = spec["model"]["vocab"]
    if isinstance(vocabulary, list):  # a unigram model: pieces with scores, in the order of ids
        vocabulary = {piece: token_id for token_id, (piece, _) in enumerate(vocabulary)}
    return vocabulary | {token["content"]: token["id"] for token in spec["added_tokens"]}


def check_spec(found: Mapping[str, Any], source: str) -> Spec:
    """Returns the parts of a ``tokenizer.json`` that we use, without truncation and padding.

    Dropout of BPE is off here: equal texts have equal ids. Raises UserError at `source` like
    `model_of`, or if the model has an option that we do not implement.
    """
    model = dict(model_of(found, source))
    kind = model["type"]
    if (found.get("truncation") or {}).get("direction") == "Left":
        raise UserError(
            "tokenizer.truncation",
            'found "Left", which keeps the end of a long text, allowed: "Right". Change it to keep '
            "the beginning.",
            place=f"{source}: truncation.direction",
        )
    spec = {
        "version": found.get("version", "1.0"),
        "truncation": None,
        "padding": None,
        "added_tokens": [dict(token) for token in found.get("added_tokens") or ()],
    }
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        spec[part] = found.get(part)
    if kind == "BPE":  # older files spell a merge "a b"
        merges = model.get("merges", [])
        model["merges"] = [
            merge.split(" ") if isinstance(merge, str) else list(merge) for merge in merges
        ]
        if model.get("dropout"):
            tell(f"{source}: BPE dropout ({model['dropout']}) is off: equal texts get equal ids")
            model["dropout"] = None
        _check_model(model, source, continuing_subword_prefix="", end_of_word_suffix="")
    unknown = model.get("unk_token")
    if kind == "Unigram":
        known = model.get("unk_id") is not None or model.get("byte_fallback")
    else:
        known = unknown in model["vocab"] or (kind == "BPE" and unknown is None)
    if not known:
        raise UserError(
            "tokenizer.unknown_piece",
            "found {found}, allowed: a piece of the vocabulary",
            place=f"{source}: model.{'unk_id' if kind == 'Unigram' else 'unk_token'}",
            found=shown(unknown),
        )
    return {**spec, "model": model}


def model_of(found: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Returns the model of a ``tokenizer.json``. Raises UserError at `source` for other kinds."""
    model = found.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind not in LIBRARY_MODELS or "vocab" not in model:
        raise UserError(
            "tokenizer.model_type",
            "found {found}, allowed: {allowed}",
            place=f"{source}: model.type",
            found=shown(kind),
            allowed=LIBRARY_MODELS,
        )
    return model


def _check_model(model: Mapping[str, Any], source: str, **allowed: Any) -> None:
    """Raises UserError if an option of the model has another value. None stands for no value."""
    for name, value in allowed.items():
        if model.get(name) not in (None, value):
            raise UserError(
                "tokenizer.model_option",
                "found {found}, allowed: {allowed}. Such a tokenizer cannot be imported.",
                place=f"{source}: model.{name}",
                found=shown(model[name]),
                allowed=shown(value),
            )


def marks_of(spec: Spec, source: str) -> Marks:
    """Returns how pieces mark words: a byte (``Ġ``) or ``▁`` for a space, or ``##`` in a word.

    Raises UserError at `source` for any other pre-tokenizer.
    """
    parts = [*_parts(spec["pre_tokenizer"], "pretokenizers")]
    kinds, model = [part.get("type") for part in parts], spec["model"]["type"]
    if model == "WordPiece":
        if not {"ByteLevel", "Metaspace"} & {*kinds} and {*_SPLIT_AT_SPACES} & {*kinds}:
            return "prefix"
    elif "ByteLevel" in kinds and model == "BPE":
        return "bytes"
    elif "Metaspace" in kinds and all(part.get("replacement", "▁") == "▁" for part in parts):
        return "metaspace"
    raise UserError(
        "tokenizer.pre_tokenizer",
        "found {found}, allowed: ByteLevel with a BPE model, Metaspace with ▁, or {allowed:or} "
        "with WordPiece. Such a tokenizer cannot be imported.",
        place=f"{source}: pre_tokenizer",
        found=kinds,
        allowed=_SPLIT_AT_SPACES,
    )


def open_pipeline(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """Opens a pipeline. Raises UserError at `source` if the library refuses it."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # the library raises Exception itself
        raise UserError(
            "tokenizer.unreadable",
            "the tokenizers library cannot read it ({reason})",
            place=source,
            reason=str(error)[:200],
        ) from None


def complete(found: Spec, source: str) -> Spec:
    """Returns a ``tokenizer.json`` with the default values of the options that it leaves out.

    Raises UserError at `source` like `model_of` and `open_pipeline`.
    """
    model_of(found, source)
    whole = json.loads(open_pipeline(found, source).to_str())
    # The library would give added tokens other ids if these had a gap.
    return {**whole, "added_tokens": found.get("added_tokens") or []}


def adds_spaces(spec: Spec) -> bool:
    """Returns whether the pre-tokenizer puts a space before each text."""
    return any(
        part.get("add_prefix_space") is True
        for part in _parts(spec["pre_tokenizer"], "pretokenizers")
    )


def lower_cases(spec: Spec) -> bool:
    """Returns whether the normalizer lower-cases text."""
    parts = list(_parts(spec["normalizer"], "normalizers"))
    return any(part.get("type") == "Lowercase" or part.get("lowercase") is True for part in parts)


def find_roles(settings: Mapping[str, Any], spec: Spec, source: str) -> Roles:
    """Returns the special pieces by role.

    ``cls_token`` or ``bos_token`` names [CLS], ``sep_token`` or ``eos_token`` names [SEP]. For a
    role without a setting, the post-processor, then the spellings of BERT and RoBERTa are searched.

    Args:
        settings: merged content of ``special_tokens_map.json`` and ``tokenizer_config.json``. A
            value is a text, or an object with ``content``.
        spec: the tokenizer.
        source: file for errors.

    Raises:
        UserError: a role has no piece, or its piece is not in the vocabulary.
    """
    pieces, found = pieces_of(spec), dict[str, str | None]()
    processed = _processor_roles(spec)
    for role, names in _SETTINGS.items():
        values = (_content(settings.get(name), f"{source}: {name}") for name in names)
        named = next((value for value in values if value is not None), None)
        usual = (spelling[role] for spelling in _CONVENTIONS if spelling[role] in pieces)
        found[role] = named or processed.get(role) or next(usual, None)
    missing = [role for role, piece in found.items() if piece not in pieces and role != "unk"]
    if missing:
        raise UserError(
            "tokenizer.role_missing",
            "found no special piece for {missing:and}. Name each in tokenizer_config.json, such as "
            '"mask_token": "<mask>".',
            place=source,
            missing=missing,
        )
    unknown = found["unk"] if found["unk"] in pieces else None
    return Roles(**{**found, "unk": unknown})  # pyright: ignore[reportArgumentType]


def find_separators(settings: Mapping[str, Any], spec: Spec, roles: Roles, source: str) -> int:
    """Returns the number of separators between the texts of a pair.

    The post-processor decides: ``<s> A </s></s> B </s>`` has two. Without a post-processor that
    adds special pieces, the class in the settings decides. Raises UserError at `source` if the
    post-processor's rows have another form.
    """
    pieces = pieces_of(spec)
    for part in _parts(spec["post_processor"], "processors"):
        separators = {"BertProcessing": 1, "RobertaProcessing": 2}.get(str(part.get("type")))
        if separators is not None:
            written = [tuple(part[name]) for name in ("cls", "sep")]
            _check_ids(written, pieces, roles, source)
            return separators
        if part.get("type") == "TemplateProcessing":
            pair, single = (_template(part[name]) for name in ("pair", "single"))
            between = pair[2:-2]
            if single != [roles.cls, "A", roles.sep] or pair != [
                *(roles.cls, "A", *[roles.sep] * len(between), "B", roles.sep)
            ]:
                raise UserError(
                    "tokenizer.template",
                    "found {found}, allowed: {allowed}, with one separator or more in the middle",
                    place=f"{source}: post_processor",
                    found=" ".join(pair),
                    allowed=f"{roles.cls} A {roles.sep} B {roles.sep}",
                )
            held = part["special_tokens"]
            written = [(name, *held[name]["ids"]) for name in (roles.cls, roles.sep)]
            _check_ids(written, pieces, roles, source)
            return max(len(between), 1)
    named = str(settings.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
    return int(settings.get("separators") or (2 if named in _TWO_SEPARATORS else 1))


def _check_ids(
    written: Sequence[tuple[Any, ...]], pieces: Mapping[str, int], roles: Roles, source: str
) -> None:
    """Raises UserError unless the post-processor writes [CLS] and [SEP] with their ids."""
    allowed = [(piece, pieces[piece]) for piece in (roles.cls, roles.sep)]
    if [*written] != allowed:
        raise UserError(
            "tokenizer.template_ids",
            "found {found}, allowed: {allowed}, the special pieces and their ids",
            place=f"{source}: post_processor",
            found=shown([*written]),
            allowed=shown(allowed),
        )


def adds_special(spec: Spec) -> bool:
    """Returns whether the post-processor writes special pieces."""
    kinds = {part.get("type") for part in _parts(spec["post_processor"], "processors")}
    return not kinds.isdisjoint(("RobertaProcessing", "BertProcessing", "TemplateProcessing"))


def with_roles(spec: Spec, roles: Roles) -> Spec:
    """Returns the tokenizer with every special piece as a special added token.

    Pieces that are added tokens already keep their settings. A mask takes the spaces before it, as
    RoBERTa's does.
    """
    pieces, special = pieces_of(spec), {piece for piece in roles if piece is not None}
    held = {token["content"] for token in spec["added_tokens"]}
    added = [
        {**token, "special": token.get("special", False) or token["content"] in special}
        for token in spec["added_tokens"]
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added += [
        {"id": pieces[piece], "content": piece, **flags, "special": True}
        for piece in sorted(special - held, key=pieces.__getitem__)
    ]
    return {**spec, "added_tokens": sorted(added, key=lambda token: token["id"])}


def without_special(spec: Spec, special: Set[str]) -> Spec:
    """Returns the tokenizer with a model that never yields a special piece.

    The `special` pieces get a space after their first character in the model's vocabulary. No input
    of the model contains a space, because the pre-tokenizer replaces all spaces. The scores of the
    other pieces stay, and so does the score of an unknown character, which depends on the lowest
    score.
    """

    def hidden(piece: str | None) -> str | None:
        return f"{piece[:1]} {piece[1:]}" if piece and piece in special else piece

    model = dict(spec["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [[hidden(piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {hidden(piece): number for piece, number in model["vocab"].items()}
        model["unk_token"] = hidden(model.get("unk_token"))
    if "merges" in model:
        model["merges"] = [
            merge for merge in model["merges"] if special.isdisjoint((*merge, "".join(merge)))
        ]
    return {**spec, "added_tokens": [], "post_processor": None, "model": model}


def essence(spec: Spec, roles: Roles, separators: int) -> str:
    """Returns what determines ids and rows as text, for a hash.

    The post-processor counts only by the number of separators. The decoder does not count.
    """
    parts = {name: spec[name] for name in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
    settings = {"type": "tokenizers", "roles": list(roles), "separators": separators}
    return json.dumps([settings, parts], sort_keys=True, ensure_ascii=True)


def _parts(found: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a part of the pipeline, which may be a sequence or missing."""
    if isinstance(found, dict):
        if isinstance(steps := found.get(inner), list):
            for step in steps:
                yield from _parts(step, inner)
        else:
            yield found


def _template(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a template as texts: ``["<s>", "A", "</s>"]``."""
    return [next(iter(item.values()))["id"] for item in items]


def _processor_roles(spec: Spec) -> dict[str, str]:
    for part in _parts(spec["post_processor"], "processors"):
        if part.get("type") in ("RobertaProcessing", "BertProcessing"):
            return {"cls": part["cls"][0], "sep": part["sep"][0]}
        if part.get("type") == "TemplateProcessing":
            single = _template(part["single"])
            return {"cls": single[0], "sep": single[-1]}
    return {}


def _content(value: Any, place: str) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise UserError(
        "tokenizer.role_type",
        'found {found}, allowed: a text, or an object with "content"',
        place=place,
        found=shown(value),
    )
