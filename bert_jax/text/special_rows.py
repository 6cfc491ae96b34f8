"""Reads the special pieces of a ``tokenizer.json``, and the rows that its post-processor writes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bert_jax.errors import UserError, all_of
from bert_jax.files.read import shown
from bert_jax.text.pipeline_file import Roles, Spec, pieces_of
from bert_jax.text.pipeline_limits import parts_of
from bert_jax.text.vocabulary import CLS, MASK, PAD, SEP, UNK, SpecialIds

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
ROLE_NAMES: Final = frozenset(name for names in _SETTINGS.values() for name in names)
"""All settings that name a special piece."""
# Spellings of BERT and RoBERTa, for a directory without these settings.
_CONVENTIONS: Final = (
    dict(zip(SpecialIds._fields, (PAD, UNK, CLS, SEP, MASK), strict=True)),
    {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
)
# Classes of tokenizers that write two separators between the texts of a pair.
_TWO_SEPARATORS: Final = ("Roberta", "XLMRoberta", "Camembert")
MASKS: Final = tuple(spelling["mask"] for spelling in _CONVENTIONS)


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
        values = (content_of(settings.get(name), f"{source}: {name}") for name in names)
        named = next((value for value in values if value is not None), None)
        usual = (spelling[role] for spelling in _CONVENTIONS if spelling[role] in pieces)
        found[role] = named or processed.get(role) or next(usual, None)
    missing = [role for role, piece in found.items() if piece not in pieces and role != "unk"]
    if missing:
        raise UserError(
            "tokenizer.role_missing",
            f'no special piece for {all_of(missing)}. Name it, as in "mask_token": "<mask>".',
            place=source,
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
    for part in parts_of(spec["post_processor"], "processors"):
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
                    f"found {' '.join(pair)}, allowed: {roles.cls} A {roles.sep} B {roles.sep}",
                    place=f"{source}: post_processor",
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
            f"found {shown([*written])}, allowed: the special pieces {shown(allowed)}",
            place=f"{source}: post_processor",
        )


def adds_special(spec: Spec) -> bool:
    """Returns whether the post-processor writes special pieces."""
    kinds = {part.get("type") for part in parts_of(spec["post_processor"], "processors")}
    return not kinds.isdisjoint(("RobertaProcessing", "BertProcessing", "TemplateProcessing"))


def rows_of(
    roles: Roles, ids: Mapping[str, int], separators: int, *, second: int = 0
) -> dict[str, Any]:
    """Returns the post-processor that writes our rows: ``[CLS] A [SEP] B [SEP]``.

    Args:
        roles: the special pieces.
        ids: ids of pieces.
        separators: number of separators between the texts of a pair.
        second: token type of the second text and of its last separator.
    """
    cls, sep = roles.cls, roles.sep

    def piece(text: str, token_type: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": token_type}}

    first = [piece(cls), {"Sequence": {"id": "A", "type_id": 0}}]
    last = [{"Sequence": {"id": "B", "type_id": second}}, piece(sep, second)]
    return {
        "type": "TemplateProcessing",
        "single": [*first, piece(sep)],
        "pair": [*first, *[piece(sep)] * separators, *last],
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (cls, sep)
        },
    }


def _template(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a template as texts: ``["<s>", "A", "</s>"]``."""
    return [next(iter(item.values()))["id"] for item in items]


def _processor_roles(spec: Spec) -> dict[str, str]:
    for part in parts_of(spec["post_processor"], "processors"):
        if part.get("type") in ("RobertaProcessing", "BertProcessing"):
            return {"cls": part["cls"][0], "sep": part["sep"][0]}
        if part.get("type") == "TemplateProcessing":
            single = _template(part["single"])
            return {"cls": single[0], "sep": single[-1]}
    return {}


def content_of(value: Any, place: str) -> str | None:
    """Returns the text of a special piece in the settings. Raises UserError for other types."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise UserError.wrong(
        "tokenizer.role_type", shown(value), 'a text, or an object with "content"', place=place
    )
