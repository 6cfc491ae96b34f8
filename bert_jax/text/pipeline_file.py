"""Reads and changes ``tokenizer.json``: the model, the pre-tokenizer and added tokens.

The format is the ``tokenizers`` library's. RoBERTa, XLM-R, CamemBERT and ModernBERT have it, and
so do newer files of BERT.
"""

import json
from collections.abc import Mapping, Set
from typing import Any, Final, Literal, NamedTuple

import tokenizers

from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.read import shown
from bert_jax.narration import tell
from bert_jax.text.pipeline_limits import check_limits, parts_of

Spec = dict[str, Any]
Marks = Literal["bytes", "metaspace", "prefix"]

LIBRARY_MODELS: Final = ("BPE", "Unigram", "WordPiece")
# Steps that divide text at white space, so that a piece never contains a space.
_SPLIT_AT_SPACES: Final = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")


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
    check_limits(found, source)
    kind = model["type"]
    if (found.get("truncation") or {}).get("direction") == "Left":
        raise UserError(
            "tokenizer.truncation",
            'found "Left", which keeps the end of a text. Change it to "Right".',
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
            f"found {shown(unknown)}, allowed: a piece of the vocabulary",
            place=f"{source}: model.{'unk_id' if kind == 'Unigram' else 'unk_token'}",
        )
    return {**spec, "model": model}


def model_of(found: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Returns the model of a ``tokenizer.json``. Raises UserError at `source` for other kinds."""
    model = found.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind not in LIBRARY_MODELS or "vocab" not in model:
        raise UserError(
            "tokenizer.model_type",
            f"found {shown(kind)}, allowed: {commas(LIBRARY_MODELS)}",
            place=f"{source}: model.type",
        )
    return model


def _check_model(model: Mapping[str, Any], source: str, **allowed: Any) -> None:
    """Raises UserError if an option of the model has another value. None stands for no value."""
    for name, value in allowed.items():
        if model.get(name) not in (None, value):
            raise UserError(
                "tokenizer.model_option",
                f"found {shown(model[name])}, allowed: {shown(value)}",
                place=f"{source}: model.{name}",
            )


def marks_of(spec: Spec, source: str) -> Marks:
    """Returns how pieces mark words: a byte (``Ġ``) or ``▁`` for a space, or ``##`` in a word.

    Raises UserError at `source` for any other pre-tokenizer.
    """
    parts = [*parts_of(spec["pre_tokenizer"], "pretokenizers")]
    kinds, model = [part.get("type") for part in parts], spec["model"]["type"]
    if model == "WordPiece":
        if not {"ByteLevel", "Metaspace"} & {*kinds} and {*_SPLIT_AT_SPACES} & {*kinds}:
            return "prefix"
    elif any(map(_drops_spaces, parts)) and not any(map(_marks_each_part, parts)):
        pass  # two words and one word would have the same pieces
    elif "ByteLevel" in kinds and model == "BPE":
        return "bytes"
    elif "Metaspace" in kinds:
        if all(part.get("replacement", "▁") == "▁" for part in parts):
            return "metaspace"
    elif _marks_spaces(spec) and {*kinds} <= {"Split", None}:
        return "metaspace"
    raise UserError(
        "tokenizer.pre_tokenizer",
        f"found {kinds}, allowed: ByteLevel (BPE), Metaspace, or {one_of(_SPLIT_AT_SPACES)}",
        place=f"{source}: pre_tokenizer",
    )


def _marks_spaces(spec: Spec) -> bool:
    """Returns whether the normalizer replaces every space by ``▁``, as Gemma's does."""
    return any(
        (part.get("type"), part.get("pattern"), part.get("content"))
        == ("Replace", {"String": " "}, "▁")
        for part in parts_of(spec["normalizer"], "normalizers")
    )


def _drops_spaces(part: Mapping[str, Any]) -> bool:
    return part.get("type") in _SPLIT_AT_SPACES or part.get("behavior") == "Removed"


def _marks_each_part(part: Mapping[str, Any]) -> bool:
    """Returns whether a step marks the start of each part that the steps before it have made."""
    prefix = part.get("add_prefix_space", part.get("prepend_scheme", "always") == "always")
    return part.get("type") in ("ByteLevel", "Metaspace") and bool(prefix)


def open_pipeline(spec: Spec, source: str) -> tokenizers.Tokenizer:
    """Opens a pipeline. Raises UserError at `source` if the library refuses it."""
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(spec))
    except BaseException as error:  # Exception itself, or a panic of Rust
        if not isinstance(error, Exception) and "Panic" not in type(error).__name__:
            raise
        raise UserError(
            "tokenizer.unreadable",
            f"the tokenizers library cannot read it ({str(error)[:200]})",
            place=source,
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
        for part in parts_of(spec["pre_tokenizer"], "pretokenizers")
    )


def lower_cases(spec: Spec) -> bool:
    """Returns whether the normalizer lower-cases text."""
    parts = list(parts_of(spec["normalizer"], "normalizers"))
    return any(part.get("type") == "Lowercase" or part.get("lowercase") is True for part in parts)


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
