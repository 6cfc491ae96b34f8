"""The languages of a split: shares of the text, shares of the examples."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.report.html import Element, percent
from bert_jax.report.page import table


def language_table(split: str, languages: Mapping[str, LanguageRecord]) -> Element:
    """Returns a split's languages, a row for each.

    Args:
        split: its name.
        languages: at least one, by code.
    """
    total = sum(each.example_tokens for each in languages.values())
    rows = [
        (
            code,
            each.documents,
            each.tokens,
            percent(each.share),
            percent(each.mixture_share),
            each.passes,
            each.examples,
            percent(each.example_tokens / total),
        )
        for code, each in languages.items()
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
