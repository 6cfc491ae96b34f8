"""The languages of a split: shares of the text, shares of the examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.report.html import Element, element
from bert_jax.report.page import table


class LanguageFigures(NamedTuple):
    """A language's part of a split."""

    language: str
    documents: int
    tokens: int
    """Of the text, each document counted once."""
    share: float
    """Of the text's tokens."""
    mixture_share: float
    """What that is to be by the mixture."""
    passes: float
    """Over a document, on average."""
    examples: int
    example_tokens: int


def language_table(split: str, languages: Sequence[LanguageFigures]) -> Element:
    """Returns a split's languages, a row for each.

    Args:
        split: its name.
        languages: at least one.
    """
    total = sum(each.example_tokens for each in languages)
    rows = [
        (
            each.language,
            each.documents,
            each.tokens,
            _percent(each.share),
            _percent(each.mixture_share),
            each.passes,
            each.examples,
            _percent(each.example_tokens / total),
        )
        for each in languages
    ]
    columns = (
        *("language", "documents", "tokens", "share of text", "share wanted", "passes"),
        *("examples", "share of examples"),
    )
    return table(
        columns,
        rows,
        caption=f"Languages of {split}: their share of the text's tokens, the share wanted of the "
        "examples' tokens, and what it is; passes over a document, on average",
    )


def _percent(share: float) -> Element:
    return element("span", f"{share:.2%}")
