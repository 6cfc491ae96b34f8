"""Describes the first difference between the settings of two runs on one dataset."""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from bert_jax.errors import differing

AGES: Final = "the input files' age"
"""Key of the input files' modification times, in the order of the files."""

_TOKENIZER: Final = ("tokenizer_hash", "vocab_size", "special_ids", "token_dtype")
_FLAT: Final = ("pairing", "text")  # keys of a recipe whose fields are keys of `examples` itself
_NO_SETTINGS: Final = ("format_version", "minhash_version", "work_version")
_MOST_NAMED: Final = 3
_NOTHING: Final = object()


def name_change(was: Mapping[str, Any], now: Mapping[str, Any], keys: Collection[str]) -> str:
    """Describes the first difference: ``examples.seed was 11, now 12``.

    If the input text differs, the description names the changed files.

    Args:
        was: JSON dump of a `Recipe` or `PreparationRecipe`.
        now: later dump of the same kind.
        keys: keys in which the dumps differ; at least one.
    """
    if not {"text", AGES}.isdisjoint(keys):
        before, after = _files(was), _files(now)
        if changes := list(_changed_files(before, after)):
            more = len(changes) - _MOST_NAMED
            named = ", ".join(changes[:_MOST_NAMED]) + (f", and {more} more" if more > 0 else "")
            return f"examples.input: {named}"
    key = next(key for key in now if key in keys)
    before, after = was.get(key), now[key]
    if key in _TOKENIZER:
        before, after = differing(*(str(each.get("tokenizer_hash")) for each in (was, now)))
        return f"examples.tokenizer had the hash {before}, now {after}"
    if key == "evaluation_sha256":
        return "examples.cleaning.contamination.files had other contents"
    if key == "formats":
        return f"examples.format was {', '.join(before or ())}, now {', '.join(after)}"
    if key == "text":  # the layout decides whether there is a language
        after = {"layout": after["layout"], **after}
    place, before, after = _narrow([] if key in _FLAT else [key], before, after)
    name = ".".join(place) if key in _NO_SETTINGS else ".".join(["examples", *place])
    return f"{name} was {_shorten(before)}, now {_shorten(after)}"


def _files(settings: Mapping[str, Any]) -> dict[str, tuple[int, float | None, str | None]]:
    """Returns size, modification time and language of each input file, by file name.

    A modification time or language that was not recorded is None.
    """
    text = settings.get("text", {})
    language = text.get("language")
    ages = settings.get(AGES) or itertools.repeat(None)
    languages = language if isinstance(language, list) else itertools.repeat(None)
    records = zip(text.get("files", []), ages, languages, strict=False)
    return {file["name"]: (file["bytes"], age, code) for file, age, code in records}


def _changed_files(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*was, *now}):
        if name not in was or name not in now:
            yield f"{name} is {'new' if name in now else 'gone'}"
            continue
        (size, age, language), (size_now, age_now, language_now) = was[name], now[name]
        if size != size_now:
            yield f"{name} had {size:,} bytes, now {size_now:,}"
        elif age != age_now:
            yield f"{name} was written again"
        elif language and language_now and language != language_now:
            yield f"{name} was in {language}, now in {language_now}"


def _narrow(place: list[str], was: Any, now: Any) -> tuple[list[str], Any, Any]:
    """Descends to the first value that differs, so that the message is short."""
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
