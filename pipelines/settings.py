"""Settings of ``bert-jax examples``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic

from bert_jax.data.pairing import PairingSection
from pipelines.sources import MAX_LINE_LENGTH


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


class ExamplesSection(PairingSection):
    """Where the text is, what it looks like, and how examples are made of it.

    The pairing settings come from :class:`PairingSection`, with the release's names and defaults.
    """

    input: Annotated[tuple[str, ...], pydantic.BeforeValidator(_as_tuple)]
    """Files and globs of UTF-8 text, also packed (``.gz``)."""
    tokenizer: str
    """Directory of the tokenizer."""
    output: str
    """Directory of the dataset, which must not exist yet."""
    layout: Literal["sentences", "prose"] = "sentences"
    """``sentences``: each line is a sentence (the release's layout). ``prose``: each line is a
    paragraph."""
    documents: Literal["blank_line", "file"] = "blank_line"
    """What separates documents: blank lines, or each file is one."""
    language: str = "en"
    """ISO 639 code, for splitting prose into sentences."""
    input_root: str | None = None
    """File names below this directory go into document ids; by default the deepest that holds all
    files."""
    max_line_length: Annotated[int, pydantic.Field(ge=1)] = MAX_LINE_LENGTH
    """A line of so many characters is an error."""
    validation_fraction: Annotated[float, pydantic.Field(ge=0.0, le=0.5)] = 0.01
    """Share of the documents held out as the split ``validation``; 0: no such split."""
    num_shards: Annotated[int, pydantic.Field(ge=1, le=99_999)] | None = None
    """Shards of the split ``train``; by default a function of its size."""
    workers: Annotated[int, pydantic.Field(ge=1)] | None = None
    """Processes; by default one per core. The dataset does not depend on it."""
    seed: int = 12345
    """Of every random draw; the release's default."""
