"""Checks values from a file against a section. The first mistake becomes a one-line error."""

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, get_args, get_origin

import pydantic
from etils import epath

from bert_jax.arguments import invalid_characters
from bert_jax.errors import SettingError, UserError, commas, did_you_mean
from bert_jax.files.read import MAX_DEPTH, read_json_object, shown
from bert_jax.section import Section, sections_of

S = TypeVar("S", bound=Section)

Sections = Sequence[type[pydantic.BaseModel]]

# Allowed values of a setting, by pydantic's type of error.
_TYPES: Final = {
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "dict_type": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true, false",
    "string_type": "text",
}
_SHOULD_BE: Final = "Input should be "
_SURE: Final = 0.8  # minimum similarity of a setting that `find_setting` suggests
_LONGEST_NAME: Final = 60
_SHORT: Final = {"lr": "learning_rate"}
_ALIASES: Final = {"text": "anchor", "pair": "positive"}  # columns of other kinds of tasks

KIND: Final = "kind"  # name of the setting that selects a section of a union


class InvalidValue(UserError):
    """A wrong value of a setting."""

    setting = ""
    """The dotted key of the setting. It is empty if the whole file is wrong."""


def _in_source(error: SettingError, source: str) -> InvalidValue:
    """Returns the error of a file. The place of `error` is the dotted key of the setting."""
    place = ": ".join(filter(None, (source, error.place)))
    invalid = InvalidValue(error.key, error.message, place=place)
    invalid.setting = error.place
    return invalid


def validate(section: type[S], values: Any, *, source: str, key: str = "") -> S:
    """Returns a section filled with nested values from YAML or JSON.

    Args:
        section: class of the section.
        values: nested values.
        source: name of the file in messages.
        key: dotted key of the section in the file. Empty if the section is the whole file.

    Raises:
        InvalidValue: A key is unknown or missing, or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        found = "a list" if isinstance(values, list) else shown(values)
        raise _in_source(_value(key, found, "keys and values"), source)
    if (problem := _not_plain(values)) is not None:
        names, found, allowed = problem
        below = ".".join(filter(None, [key, *(name[:60] for name in names)]))
        raise _in_source(_value(below, found, allowed), source)
    try:
        # Validate JSON: in strict mode pydantic accepts lists for tuples only from JSON.
        return section.model_validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        raise _in_source(_first_mistake(error, section, key, values), source) from error


def read_section(section: type[S], path: epath.Path) -> S:
    """Returns a section filled with the JSON object in a file. Raises UserError if it is wrong."""
    return validate(section, read_json_object(path), source=str(path))


def _value(setting: str, found: str, allowed: object, hint: str = "") -> SettingError:
    return SettingError.wrong("setting.value", found, f"{allowed}{hint}", place=setting)


def _not_plain(value: Any, depth: int = 0) -> tuple[list[str], str, str] | None:
    """Finds the first value that no setting may have, such as a 65-bit integer or text with NUL.

    pydantic accepts some of these values, but file systems, devices or JSON do not. Returns the
    keys that lead to the value, its description, and the allowed values.
    """
    if isinstance(value, Mapping | list | tuple):
        if depth == MAX_DEPTH:
            return [], f"values nested deeper than {MAX_DEPTH}", "at most that deep"
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, below in pairs:
            if not isinstance(name, str | int) or invalid_characters(str(name)):
                return [], f"the key {shown(name)}", "text"
            if (problem := _not_plain(below, depth + 1)) is not None:
                problem[0].insert(0, str(name))
                return problem
        return None
    if value is None or isinstance(value, bool | float):  # pydantic refuses nan and infinity
        return None
    if isinstance(value, str):
        bad = invalid_characters(value)
        return ([], shown(value), f"text without {bad}") if bad else None
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**63
        return None if fits else ([], shown(value), "numbers of 64 bits")
    return [], type(value).__name__, "text, numbers, lists, keys and values"


def _first_mistake(
    error: pydantic.ValidationError,
    root: type[pydantic.BaseModel],
    above: str,
    values: Mapping[str, Any],
) -> SettingError:
    """Returns the first error of a validation. Suggests a similar name for an unknown key."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "missing":  # an unknown key may be its misspelling
        first = next((each for each in errors if each["type"] == "extra_forbidden"), first)
    location, sections, union = _walk(root, first["loc"])
    key = ".".join([*([above] if above else []), *(f"{part!s:.60}" for part in location)])
    context = first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        at_top = len(location) == 1
        names = list(dict.fromkeys(name for each in sections for name in each.model_fields))
        nearest = find_setting(str(location[-1]), sections, first=values if at_top else ())
        near = f'; did you mean "{nearest}"?' if nearest else did_you_mean(str(location[-1]), names)
        nested = nearest is None or "." in nearest  # otherwise the section has a similar name
        if nested and not at_top and not above and location[-1] in root.model_fields:
            near = f"; {location[-1]} is a setting of the top level"
        if kinds := _kinds_with(str(location[-1]), union):
            alias = _ALIASES.get(str(location[-1]))
            near = f"; a setting of kind {' and '.join(kinds)}"
            near += f'; did you mean "{alias}"?' if alias in names else ""
        return SettingError(
            "setting.unknown", f"unknown key{near}; allowed: {commas(names)}", place=key
        )
    if first["type"] == "missing":
        return SettingError("setting.missing", "missing", place=key)
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = [each.model_fields[KIND].default for each in sections]
        found = context.get("tag")
        spelled = "nothing" if found is None else f'"{found:.60}"'
        near = "" if found is None else did_you_mean(found, kinds)
        return _value(f"{key}.{KIND}", spelled, kinds, near)
    if isinstance(cause := context.get("error"), SettingError):  # from a section's validator
        setting = ".".join(filter(None, [key, cause.place]))
        return cause.with_place(setting)
    found = first["input"]
    spelled = shown(found, most=200)
    if first["type"] == "literal_error" and isinstance(found, str):
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return _value(key, spelled, allowed, did_you_mean(found, allowed))
    return _value(key, spelled, _allowed(first["type"], first["msg"]))


def _allowed(kind: str, message: str) -> str:
    """Returns the allowed values of a setting from pydantic's error type and message."""
    if kind in _TYPES:
        return _TYPES[kind]
    if kind == "too_short":
        return message.removeprefix("Tuple should have ").partition(" after")[0]
    if kind == "string_pattern_mismatch":
        return message.replace("String should match pattern", "text that matches")
    return message.removeprefix(_SHOULD_BE).removeprefix("Value error, ")


def _walk(
    root: type[pydantic.BaseModel], location: Sequence[str | int]
) -> tuple[list[str | int], list[type[pydantic.BaseModel]], Sections]:
    """Returns the keys that lead to an error, and the sections that may have its last key.

    pydantic adds the kind of a section to the location if the section is in a union. The keys omit
    the kind. If the location ends at a union, the sections are all members of the union. Also
    returns the members of the union to which the last section belongs, if there is one.
    """
    key: list[str | int] = []
    sections: list[type[pydantic.BaseModel]] = [root]
    union: Sections = ()
    for at, part in enumerate(location):
        kinds = [
            each
            for each in sections
            if KIND in each.model_fields and each.model_fields[KIND].default == part
        ]
        if kinds:
            union, sections = sections, kinds
            continue
        key.append(part)
        owners = [each for each in sections if isinstance(part, str) and part in each.model_fields]
        if owners:
            below = sections_of(owners[0].model_fields[str(part)].annotation)
            if at + 1 < len(location) or len(below) > 1:
                union, sections = (), below
    return key, sections, union


def _kinds_with(name: str, union: Sections) -> list[str]:
    """Returns the kinds of a union's sections that have a setting."""
    return [each.model_fields[KIND].default for each in union if name in each.model_fields]


def find_setting(name: str, sections: Sections, *, first: Collection[str]) -> str | None:
    """Returns the dotted key of the setting with the most similar name, or None.

    ``find_setting("batchsize", [RunConfig], first=["train"]) -> "train.phases.0.batch_size"``

    Searches the sections and all nested sections. If several settings have this name, prefers a
    setting whose top-level key is in `first`.
    """
    places: dict[str, list[str]] = {}
    for key in _keys_below(sections):
        places.setdefault(key.rpartition(".")[2], []).append(key)
    name = _SHORT.get(name, name[:_LONGEST_NAME])
    near = difflib.get_close_matches(name, places, n=1, cutoff=_SURE)
    near += [place for place in places if {*name.split("_")} <= {*place.split("_")}]
    if not near:
        return None
    keys = places[near[0]]
    return next((key for key in keys if key.partition(".")[0] in first), keys[0])


def _keys_below(sections: Sections) -> Iterator[str]:
    """Yields the dotted keys of all settings, top level first, with index 0 for every list."""
    level = [("", section) for section in sections]
    while level:
        following = []
        for above, section in level:
            for name, field in section.model_fields.items():
                key = f"{above}{name}"
                yield key
                place = f"{key}.0." if _is_list(field.annotation) else f"{key}."
                following += [(place, below) for below in sections_of(field.annotation)]
        level = following


def _is_list(annotation: Any) -> bool:
    """Returns whether the type of a field is a tuple or an optional tuple."""
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))
