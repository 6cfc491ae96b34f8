"""The base of every package's settings."""

from __future__ import annotations

import pydantic


class Section(pydantic.BaseModel):
    """One package's settings: immutable, strict about types, closed to unknown keys.

    A function takes the section it needs and never the whole run configuration, so that its
    signature says all that it depends on.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, protected_namespaces=()
    )
