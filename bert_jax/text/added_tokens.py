"""Added tokens: pieces that the library finds in a text before the model divides the rest.

`tokenizer.json` lists them. Older files have them in ``tokenizer_config.json``
(``added_tokens_decoder``, ``additional_special_tokens``) or ``added_tokens.json``. Source:
`_from_pretrained` in Hugging Face transformers, `tokenization_utils_base.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.files.read import is_whole, shown
from bert_jax.text.pipeline_file import Spec, pieces_of
from bert_jax.text.special_rows import ROLE_NAMES, ROLE_SETTINGS

ADDED_FILE: Final = "added_tokens.json"
DECODER: Final = "added_tokens_decoder"
_LISTS: Final = ("extra_special_tokens", "additional_special_tokens")
# The list of special_tokens_map.json, which transformers 5 reads after ``added_tokens.json``.
_LATE: Final = "additional_special_tokens of special_tokens_map.json"
_NAMED: Final = "model_specific_special_tokens"
_ENDS: Final = ("bos_token", "eos_token")
_FLAGS: Final = ("single_word", "lstrip", "rstrip")


def merge_special(
    config: Mapping[str, Any], special: Mapping[str, Any], *, place: str
) -> dict[str, Any]:
    """Returns the settings of two files, merged as in transformers 5.

    Args:
        config: content of ``tokenizer_config.json``.
        special: content of ``special_tokens_map.json``, which overrides `config`.
        place: directory, for errors.

    Raises:
        UserError: an entry is malformed, or the files list different added tokens: then versions of
            transformers differ.
    """
    config = {name: value for name, value in config.items() if not _is_ignored(name, value)}
    merged = {**config, **special}
    ends = [merged[name] for name in _ENDS if _content(merged.get(name))]
    here, there, around = (
        [_token(entry, 0, special=True, place=place) for entry in entries]
        for entries in (_extra(config, place), _extra(special, place), ends)
    )
    flags = {token["content"]: token for token in (*here, *there, *around)}
    differ = any(flags[token["content"]] != token for token in (*here, *there))
    # transformers 5 prefers an empty list to the old name in special_tokens_map.json.
    emptied = any(each.get(name, {}) in (None, []) for each in (config, special) for name in _LISTS)
    given = there or _LISTS[0] in special
    if differ or (given and here != there and (here or emptied)):
        found, expected = (shown([token["content"] for token in each]) for each in (here, there))
        raise UserError(
            "tokenizer.added_tokens_differ",
            f"lists {found}, but special_tokens_map.json {expected}. Remove the wrong entries.",
            place=place,
        )
    roles = {name: special[name] for name in special if name in ROLE_NAMES}
    if here:
        return config | roles
    if not isinstance(merged.get(_LISTS[0]), list):
        merged[_LATE] = merged.pop(_LISTS[1], None)
    return merged


def with_added_tokens(
    spec: Spec, settings: Mapping[str, Any], numbers: Mapping[str, Any], *, source: str
) -> Spec:
    """Returns a pipeline with the added tokens of the files beside it.

    Args:
        spec: the pipeline.
        settings: merged content of ``special_tokens_map.json`` and ``tokenizer_config.json``.
        numbers: content of ``added_tokens.json``: ids by text. It counts only without
            ``added_tokens_decoder``.
        source: file for errors.

    Raises:
        UserError: an entry is malformed.
    """
    held = {token["content"]: token for token in spec["added_tokens"]}
    special = [settings[name] for name in _ENDS if _content(settings.get(name))]
    special += _extra(settings, source)
    if DECODER in settings:
        entries = settings[DECODER]
        if not isinstance(entries, dict) or not all(is_whole(key) for key in entries):
            raise _malformed(entries, f"{source}: {DECODER}")
        for key, entry in entries.items():
            token = _token(entry, int(key), special=False, place=f"{source}: {DECODER}")
            held[token["content"]] = token
    else:
        roles = [settings.get(name) for name in ROLE_NAMES]
        entries = (*roles, *_list(settings, source))
        # transformers compares objects of tokenizer_config.json before it reads their texts.
        names = {_content(entry) for entry in entries if not _is_typed(entry)}
        for text, number in numbers.items():
            if not isinstance(number, int):
                raise _malformed(number, f"{source}: {ADDED_FILE}")
            place = f"{source}: {ADDED_FILE}"
            held.setdefault(text, _token(text, number, special=text in names, place=place))
    pieces = pieces_of({**spec, "added_tokens": [*held.values()]})
    # A role may have flags, such as RoBERTa's mask, which takes the spaces before it.
    roles = (settings.get(name) for name in ROLE_SETTINGS)
    special += [role for role in roles if isinstance(role, dict) and _content(role) in pieces]
    for entry in special:
        content = _content(entry)
        if content not in held:
            number = pieces.setdefault(content, len(pieces))
            held[content] = _token(entry, number, special=True, place=source)
    return {**spec, "added_tokens": sorted(held.values(), key=lambda token: token["id"])}


def check_ids(spec: Spec, found: Mapping[str, int], source: str) -> None:
    """Raises UserError if the library gives an added token another id than the files.

    `found` has the library's ids.
    """
    for token in spec["added_tokens"]:
        content, number = token["content"], token["id"]
        if found.get(content) != number:
            raise UserError(
                "tokenizer.added_tokens",
                f"{shown(content)} has id {number}, but {found.get(content)} in the library",
                place=f"{source}: added_tokens",
            )


def _extra(settings: Mapping[str, Any], source: str) -> Iterator[Any]:
    """Yields the special tokens that no role of transformers names."""
    own = [name for name in settings if name.endswith("_token") and name not in ROLE_NAMES]
    own.sort(key=lambda name: not _is_typed(settings[name]))
    named = {name: settings[name] for name in own if _content(settings[name])}
    for name in (_NAMED, *_LISTS):
        if isinstance(values := settings.get(name), dict):
            named |= values
    yield from named.values()
    yield from _list(settings, source)
    yield from settings.get(_LATE) or ()


def _list(settings: Mapping[str, Any], source: str) -> Sequence[Any]:
    """Returns the list of special tokens without names: the first that is not empty."""
    for name in _LISTS:
        values = settings.get(name) or []
        if not isinstance(values, dict | list | tuple):
            raise _malformed(values, f"{source}: {name}")
        if values and not isinstance(values, dict):
            return values
    return ()


def _is_ignored(name: str, value: Any) -> bool:
    """Returns whether transformers ignores a token of ``tokenizer_config.json``."""
    own = name.endswith("_token") and name not in ROLE_NAMES
    return own and isinstance(value, dict) and not _is_typed(value)


def _is_typed(value: Any) -> bool:
    return isinstance(value, dict) and value.get("__type") == "AddedToken"


def _token(entry: Any, number: int, *, special: bool, place: str) -> dict[str, Any]:
    content = _content(entry)
    if not content:
        raise _malformed(entry, place)
    flags = entry if isinstance(entry, dict) else {}
    special = special or flags.get("special") is True
    return {
        "id": number,
        "content": content,
        **{name: flags.get(name) is True for name in _FLAGS},
        "normalized": bool(flags.get("normalized", not special)),
        "special": special,
    }


def _content(entry: Any) -> Any:
    found = entry.get("content") if isinstance(entry, dict) else entry
    return found if isinstance(found, str) else None


def _malformed(found: Any, place: str) -> UserError:
    return UserError.wrong(
        "tokenizer.added_token", shown(found), 'a text, or an object with "content"', place=place
    )
