"""Checks arguments from Python code. A wrong one is a one-line error with its name."""

import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Collection, Mapping
from typing import (
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import pydantic

from bert_jax.errors import SettingError, UserError, commas, did_you_mean, one_of

F = TypeVar("F", bound=Callable[..., Any])

# Allowed values by pydantic's type of error, or by class.
_ALLOWED: Final = {
    "bool_type": "True, False",
    "callable_type": "a function",
    "dict_type": "a dict",
    "float_type": "a number",
    "int_type": "an integer",
    "sequence_str": "a list",
    "string_type": "text",
    "PathLike": "a path",
    "Sequence": "a list",
}
_TEXTS: Final = (str, str | None)
_LONGEST: Final = 60  # characters of a value in a message
_INVALID: Final = re.compile("[\0\ud800-\udfff]")


def checked(function: F) -> F:
    """Returns the function with a check of its arguments against their annotations.

    ``encode("a text", batch_size=1.5)`` raises ``batch_size: found 1.5, allowed: an integer``. The
    check is strict: ``True`` and ``"9"`` are no integers. NumPy's scalars become Python's, and
    paths become text where only text is allowed. Other arguments are passed on as they are.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's error names the function
        allowed, given = _allowed_arguments(function), bound.arguments
        for name in given.keys() & allowed.hints.keys():
            given[name] = _plain(name, given[name], allowed.hints[name])
        try:
            allowed.section.model_validate(
                {name: given.get(name) for name in allowed.hints if name in given}
            )
        except pydantic.ValidationError as error:
            raise _refusal(error) from None
        return function(*bound.args, **bound.kwargs)

    return cast(F, call)


class _Allowed(NamedTuple):
    hints: dict[str, Any]  # types of the arguments
    section: type[pydantic.BaseModel]  # with a field for each argument


@functools.cache  # at the first call, because an annotation may name a class that is defined later
def _allowed_arguments(function: Callable[..., Any]) -> _Allowed:
    hints = get_type_hints(function, include_extras=True)
    hints = {
        name: _without_dicts(hints[name])
        for name, each in inspect.signature(function).parameters.items()
        if name in hints and each.kind is not each.VAR_KEYWORD
    }
    config = pydantic.ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    fields: Any = {name: (hint, None) for name, hint in hints.items()}
    return _Allowed(hints, pydantic.create_model("Arguments", __config__=config, **fields))


def _without_dicts(hint: Any) -> Any:
    """Returns a type in which pydantic does not accept a dict in place of a section."""
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return pydantic.InstanceOf[hint]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(map(_without_dicts, get_args(hint)))]  # noqa: UP007
    return hint


def _plain(name: str, value: Any, hint: Any) -> Any:
    """Returns a value without NumPy's types. Raises UserError for text that names no file."""
    if isinstance(value, np.generic):
        value = value.item()
    if hint in _TEXTS:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, str) and (invalid := invalid_characters(value)):
            raise _wrong(name, value, [f"text without {invalid}"])
    return value


def invalid_characters(text: str) -> str:
    """Names the invalid characters of a text, or returns ``""``. UTF-8 cannot encode surrogates."""
    found = _INVALID.search(text)
    return "" if found is None else "NUL" if found[0] == "\0" else "halves of surrogate pairs"


def wrong_setting(error: pydantic.ValidationError, known: Collection[str]) -> UserError:
    """Returns the error of a section that Python code has filled. `known` are its settings."""
    first = error.errors()[0]
    name, cause = ".".join(map(str, first["loc"])), first.get("ctx", {}).get("error")
    if isinstance(cause, SettingError):
        return cause.at(".".join(filter(None, [name, cause.place])))
    if first["type"] in ("missing", "extra_forbidden"):
        what = "unknown" if first["type"] == "extra_forbidden" else "missing"
        hint = did_you_mean(name, known) if what == "unknown" else ""
        return UserError("argument.name", f"{what}{hint}; allowed: {commas(known)}", place=name)
    return _refusal(error).with_place(name)


def _refusal(error: pydantic.ValidationError) -> UserError:
    """Returns the error of the first wrong argument.

    A union has an error for each of its types. The longest path leads to the wrong item of a list.
    """
    name = error.errors()[0]["loc"][0]
    errors = [each for each in error.errors() if each["loc"][0] == name]
    paths = [[part for part in each["loc"][1:] if isinstance(part, int)] for each in errors]
    longest = max(paths, key=len)
    errors = [each for path, each in zip(paths, errors, strict=True) if path == longest]
    allowed = dict.fromkeys(text for each in errors for text in _described(each))
    place = "".join([str(name), *(f"[{index}]" for index in longest)])
    return _wrong(place, errors[0]["input"], [*allowed])


def _described(error: Mapping[str, Any]) -> list[str]:
    """Returns the allowed values of an argument from pydantic's error."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        return re.findall(r"'([^']*)'", context["expected"])
    if kind == "is_instance_of":
        name = str(context["class"])
        return [_ALLOWED.get(name, f"a {name}")]
    return [_ALLOWED.get(kind, str(error["msg"]).removeprefix("Input should be "))]


def _wrong(place: str, found: Any, allowed: list[str]) -> UserError:
    plain = found is None or isinstance(found, str | bytes | int | float)
    hint = did_you_mean(found, allowed) if isinstance(found, str) else ""
    return UserError(
        "argument.value",
        f"found {ascii(found)[:_LONGEST] if plain else type(found).__name__}, allowed: "
        f"{one_of(allowed)}{hint}",
        place=place,
    )
