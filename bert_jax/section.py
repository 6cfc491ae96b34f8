"""The base class of all sections of settings, and types of paths."""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, get_args

import pydantic

from bert_jax.arguments import wrong_setting
from bert_jax.errors import SettingError, UserError
from bert_jax.places import DATASETS, MODELS, check_place

T = TypeVar("T")

# Limits of Linux's file systems, in bytes.
_MAX_NAME: Final = 255
_MAX_PATH: Final = 4000


def as_tuple(value: Any) -> Any:
    """Turns a list or a single text from YAML into a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Strings: TypeAlias = Annotated[tuple[str, ...], pydantic.BeforeValidator(as_tuple)]
"""A list of texts. In YAML, a single text is also accepted."""


def check_path(path: str, *, hub: str = "") -> str:
    """Returns the path; ~ becomes the home directory.

    Raises SettingError if the path is empty, too long or an unsupported URL.
    """
    check_place(path, hub=hub)
    if not path.strip():
        raise SettingError.wrong("path.empty", f'"{path}"', "a path; . is the working directory")
    longest = max(len(part.encode()) for part in path.split("/"))
    if longest > _MAX_NAME or len(path.encode()) > _MAX_PATH:
        raise SettingError(
            "path.too_long", f'found "{path:.200}", allowed: {_MAX_PATH} bytes, {_MAX_NAME} a name'
        )
    return os.path.expanduser(path) if path.startswith("~") else path  # a shell expands no a=~/b


def check_local_path(path: str) -> str:
    """Returns the local path. Raises SettingError like `check_path`, and for any URL."""
    if "://" in path:
        raise SettingError.wrong("path.not_local", f'"{path}"', "a local path")
    return check_path(path)


check_data_path = functools.partial(check_path, hub=DATASETS)

PathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_path)]
"""A local path or a path in a bucket."""
LocalPathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_local_path)]
"""A path on this machine."""
DataPathText: TypeAlias = Annotated[str, pydantic.AfterValidator(check_data_path)]
"""A path, or a dataset on a hub."""
ModelPathText: TypeAlias = Annotated[
    str, pydantic.AfterValidator(functools.partial(check_path, hub=MODELS))
]
"""A path, or a model on a hub."""


if TYPE_CHECKING:  # a type checker takes the arguments of a section from its fields
    _SectionType = type(pydantic.BaseModel)
else:

    class _SectionType(type(pydantic.BaseModel)):
        """Type of the sections. Only Python code calls one: `validate` does without the call."""

        def __call__(cls, /, *args: Any, **data: Any) -> Any:
            """Fills a section. Raises UserError for a wrong setting."""
            try:
                return super().__call__(*args, **data)
            except pydantic.ValidationError as error:
                raise wrong_setting(error, cls.model_fields) from None


class Section(pydantic.BaseModel, metaclass=_SectionType):
    """Base class of the settings of one package: immutable, with strict types, no unknown keys.

    Pass a function the section that it needs, never the whole run configuration.
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
    """Raises SettingError for settings that have an effect only with the setting `allowed`.

    A setting with its default value passes, because a resolved configuration lists every default.
    """
    for name in names:
        found = getattr(section, name)
        if found != type(section).model_fields[name].default:
            raise SettingError.wrong(
                "setting.ignored", f"{found!s:.60}", f"only with {allowed}", place=name
            )


def refuse_same_column(columns: Mapping[str, str | None]) -> None:
    """Raises SettingError if two settings name the same column of a table."""
    first: dict[str, str] = {}
    for name, column in columns.items():
        if column is not None and first.setdefault(column, name) != name:
            raise SettingError(
                "setting.same_column",
                f'found "{column}", which is also {first[column]}, allowed: another column',
                place=name,
            )


def need(value: T | None, key: str, verb: str) -> T:
    """Returns a setting that a verb needs. Raises UserError if it is not set."""
    if value is None:
        raise UserError(
            "setting.needed",
            f"missing, but `bert-jax {verb}` needs it in the configuration",
            place=key,
        )
    return value


@contextlib.contextmanager
def under(key: str, section: type[Section]) -> Iterator[None]:
    """Adds a section's key to the place of an error: ``task.text`` → ``finetune.task.text``."""
    try:
        yield
    except UserError as error:
        if _is_setting(error.place.partition(":")[0], section):
            raise error.with_place(f"{key}.{error.place}") from error
        raise


@contextlib.contextmanager
def at(key: str) -> Iterator[None]:
    """Puts the key of a setting before the place of an error: ``train.phases.0.dataset: a/b``."""
    try:
        yield
    except UserError as error:
        raise error.located(key) from error


def _is_setting(name: str, section: type[pydantic.BaseModel]) -> bool:
    """Returns whether a dotted key is a setting; ``input.txt`` is a file."""
    first, _, rest = name.partition(".")
    if first not in section.model_fields:
        return False
    below = sections_of(section.model_fields[first].annotation)
    return not rest or any(_is_setting(rest, each) for each in below)


def sections_of(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Returns the sections in the type of a field: one, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_of(part)]
