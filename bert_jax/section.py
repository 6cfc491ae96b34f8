"""The base of every package's settings."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import pydantic

from bert_jax.errors import SettingError, UserError
from bert_jax.places import DATASETS, MODELS, check_place

T = TypeVar("T")

# Of Linux's file systems.
_MAX_NAME: Final = 255
_MAX_PATH: Final = 4000


def as_tuple(value: Any) -> Any:
    """Returns a list or a single text from YAML as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Strings: TypeAlias = Annotated[tuple[str, ...], pydantic.BeforeValidator(as_tuple)]
"""A list of texts; YAML may have a single text."""


def check_path(path: str, *, hub: str = "") -> str:
    """Returns a path as it is; SettingError: it is empty, too long, or no allowed address."""
    check_place(path, hub=hub)
    if not path.strip():
        raise SettingError(
            "path.empty", 'found "{found}", allowed: a path; . is the working directory', found=path
        )
    longest = max(len(part.encode()) for part in path.split("/"))
    if longest > _MAX_NAME or len(path.encode()) > _MAX_PATH:
        raise SettingError(
            "path.too_long",
            'found "{found}", allowed: a path of {bytes} bytes, {between} between its slashes',
            found=f"{path:.200}",
            bytes=_MAX_PATH,
            between=_MAX_NAME,
        )
    return path


def check_local_path(path: str) -> str:
    """Returns a local path as it is; SettingError as `check_path`, or for an address."""
    if "://" in path:
        raise SettingError("path.not_local", 'found "{found}", allowed: a local path', found=path)
    return check_path(path)


check_data_path = functools.partial(check_path, hub=DATASETS)

PathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_path)]
"""A local path, or one in a bucket."""
LocalPathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_local_path)]
"""A path on this machine."""
DataPathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_data_path)]
"""A path, or a dataset on a hub."""
ModelPathText: TypeAlias = Annotated[
    str, pydantic.AfterValidator(functools.partial(check_path, hub=MODELS))
]
"""A path, or a model on a hub."""


class Section(pydantic.BaseModel):
    """One package's settings: immutable, strict about types, closed to unknown keys.

    A function takes the section that it needs and never the whole run configuration.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )


def refuse_ignored(section: Section, *names: str, allowed: str) -> None:
    """Raises SettingError for settings without effect; they need the setting `allowed`.

    A setting at its default passes: a resolved configuration spells out every default.
    """
    for name in names:
        found = getattr(section, name)
        if found != type(section).model_fields[name].default:
            raise SettingError(
                "setting.ignored",
                "found {found}, allowed: only with {allowed}",
                place=name,
                found=f"{found!s:.60}",
                allowed=allowed,
            )


def need(value: T | None, key: str, verb: str) -> T:
    """Returns a setting that a verb needs; UserError: it is not set."""
    if value is None:
        raise UserError(
            "setting.needed",
            "missing, but `bert-jax {verb}` needs it in the configuration",
            place=key,
            verb=verb,
        )
    return value


@contextlib.contextmanager
def under(key: str, section: type[Section]) -> Iterator[None]:
    """Prefixes a section's keys in messages: ``input: no file`` → ``examples.input: no file``."""
    try:
        yield
    except UserError as error:
        place = error.values.get("place", "")
        if place.partition(":")[0] in section.model_fields:
            raise error.followed_by("", place=f"{key}.{place}") from error
        raise
