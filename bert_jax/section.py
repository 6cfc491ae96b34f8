"""The base of every package's settings."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import pydantic


def as_tuple(value: Any) -> Any:
    """Returns a list or a single text, as YAML has them, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Strings: TypeAlias = Annotated[tuple[str, ...], pydantic.BeforeValidator(as_tuple)]
"""A list of texts; YAML may give one as it is."""


class Section(pydantic.BaseModel):
    """One package's settings: immutable, strict about types, closed to unknown keys.

    A function takes the section it needs and never the whole run configuration, so that its
    signature says all that it depends on.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, protected_namespaces=()
    )
