"""What differs between the settings of two runs on one dataset, as the user has written it."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from bert_jax.errors import differing

AGES: Final = "the input files' age"
"""Key of when each of the text's files was written, in the order of the files."""

_TOKENIZER: Final = ("tokenizer_hash", "vocab_size", "special_ids", "token_dtype")
_FLAT: Final = ("pairing", "text")  # whose settings are the section's own
_NO_SETTINGS: Final = ("format_version", "minhash_version")
_MOST_NAMED: Final = 3
_NOTHING: Final = object()


def name_change(was: Mapping[str, Any], now: Mapping[str, Any], keys: Collection[str]) -> str:
    """Says the first difference in one of some keys: ``examples.seed was 11, now 12``.

    Of the text it names the files. Both are records of JSON, as `Recipe` and `PreparationRecipe`
    dump them; in each of the keys they differ.
    """
    if not {"text", AGES}.isdisjoint(keys):
        before, after = _files(was), _files(now)
        if changes := list(_changed_files(before, after)):
            more = len(changes) - _MOST_NAMED
            said = ", ".join(changes[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")
            return f"examples.input: {said}"
    key = next(key for key in now if key in keys)
    before, after = was.get(key), now[key]
    if key in _TOKENIZER:
        before, after = differing(*(str(each.get("tokenizer_hash")) for each in (was, now)))
        return f"examples.tokenizer was another one ({before}, now {after})"
    if key == "evaluation_sha256":
        return "examples.cleaning.contamination.files had other contents"
    if key == "formats":
        return f"examples.format was {', '.join(before or ())}, now {', '.join(after)}"
    place, before, after = _narrow([] if key in _FLAT else [key], before, after)
    name = ".".join(place) if key in _NO_SETTINGS else ".".join(["examples", *place])
    return f"{name} was {_shorten(before)}, now {_shorten(after)}"


class _File(NamedTuple):
    bytes: int
    modified: float | None  # None: not recorded
    language: str | None  # None: the settings name no languages


def _files(settings: Mapping[str, Any]) -> dict[str, _File]:
    """Returns the text's files by their names."""
    text = settings.get("text", {})
    files, language = text.get("files", []), text.get("language")
    nothing = [None] * len(files)
    ages = settings.get(AGES) or nothing
    languages = language if isinstance(language, list) else nothing
    held = zip(files, ages, languages, strict=False)
    return {file["name"]: _File(file["bytes"], age, code) for file, age, code in held}


def _changed_files(was: Mapping[str, _File], now: Mapping[str, _File]) -> Iterator[str]:
    for name in sorted({*was, *now}):
        before, after = was.get(name), now.get(name)
        if before is None:
            yield f"{name} is new"
        elif after is None:
            yield f"{name} is gone"
        elif before.bytes != after.bytes:
            yield f"{name} had {before.bytes:,} bytes, now {after.bytes:,}"
        elif before.modified != after.modified:
            yield f"{name} was written again since"
        elif before.language and after.language and before.language != after.language:
            yield f"{name} was in {before.language}, now in {after.language}"


def _narrow(place: list[str], was: Any, now: Any) -> tuple[list[str], Any, Any]:
    """Goes down to the first value that differs, so that a message has room for it."""
    if isinstance(was, list) and isinstance(now, list):
        was, now = ({str(at): value for at, value in enumerate(held)} for held in (was, now))
    if not isinstance(was, dict) or not isinstance(now, dict):
        return place, was, now
    for key in {**now, **was}:
        before, after = was.get(key, _NOTHING), now.get(key, _NOTHING)
        if before != after:
            return _narrow([*place, key], before, after)
    return place, was, now


def _shorten(value: Any) -> str:
    text = "nothing" if value is _NOTHING else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
