"""Added tokens: pieces that the library finds in a text before the model divides the rest.

`tokenizer.json` lists them. Older files have them in ``tokenizer_config.json``
(``added_tokens_decoder``, ``additional_special_tokens``) or ``added_tokens.json``. Source:
`_from_pretrained` in Hugging Face transformers, `tokenization_utils_base.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bert_jax.errors import UserError
from bert_jax.files.read import is_whole, shown
from bert_jax.text.pipeline_file import Spec, pieces_of
from bert_jax.text.special_rows import ROLE_SETTINGS

ADDED_FILE: Final = "added_tokens.json"
DECODER: Final = "added_tokens_decoder"
# All objects count, and the first list that is not empty. The last one is the list
# additional_special_tokens of special_tokens_map.json, which transformers 5 reads after
# ``added_tokens.json``.
LATE: Final = "additional_special_tokens of special_tokens_map.json"
_LISTS: Final = (
    "model_specific_special_tokens",
    "extra_special_tokens",
    "additional_special_tokens",
    LATE,
)
_FLAGS: Final = ("single_word", "lstrip", "rstrip")


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
    special = [*_special(settings, source)]
    if DECODER in settings:
        entries = settings[DECODER]
        if not isinstance(entries, dict) or not all(is_whole(key) for key in entries):
            raise _malformed(entries, f"{source}: {DECODER}")
        for key, entry in entries.items():
            token = _token(entry, int(key), special=False, place=f"{source}: {DECODER}")
            held[token["content"]] = token
    else:
        early = {name: value for name, value in settings.items() if name != LATE}
        names = {_content(entry) for entry in _special(early, source)}
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
                "{found} has id {id}, but the library gives it {expected}. Write its files again "
                "in Python: transformers.AutoTokenizer.from_pretrained(directory)."
                "save_pretrained(directory)",
                place=f"{source}: added_tokens",
                found=shown(content),
                id=number,
                expected=found.get(content),
            )


def _special(settings: Mapping[str, Any], source: str) -> Iterator[Any]:
    """Yields the special tokens of the settings that have none of our roles."""
    for name, value in settings.items():
        if name.endswith("_token") and name not in ROLE_SETTINGS and _content(value) is not None:
            yield value
    lists = {name: settings[name] for name in _LISTS if settings.get(name)}
    named = [name for name, values in lists.items() if isinstance(values, dict)]
    for name in [*named, *[name for name in lists if name not in named][:1]]:
        values = lists[name]
        if not isinstance(values, dict | list | tuple):
            raise _malformed(values, f"{source}: {name}")
        for value in values.values() if isinstance(values, dict) else values:
            if _content(value) is None:
                raise _malformed(value, f"{source}: {name}")
            yield value


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
    return UserError(
        "tokenizer.added_token",
        'found {found}, allowed: a text, or an object with "content"',
        place=place,
        found=shown(found),
    )
