"""Examples with their masks as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bert_jax.report.dataset.sample import DrawnExample, Piece
from bert_jax.report.html import Element, Node, element
from bert_jax.report.page import facts

COLOURS: Final = ("--type:var(--type-0)", "--type:var(--type-1)")


def example_item(drawn: DrawnExample) -> Element:
    """Returns an example as an item of a list: its spans, what it is, what is to be predicted."""
    lines = [
        element(
            "div",
            element("span", name),
            element("span", element("span", *_words(span), class_="span", style=colour)),
            class_="line text",
        )
        for name, span, colour in zip("AB", drawn.spans, COLOURS, strict=False)
    ]
    told = facts(
        [
            ("example", f"{drawn.number:,}"),
            ("label", drawn.label),
            ("tokens", f"{drawn.tokens:,}"),
            ("to predict", f"{drawn.predictions:,}"),
        ]
    )
    return element("li", *lines, told)


def _words(span: Sequence[Piece]) -> list[Node]:
    """Returns pieces as running text; what is not marked is one string."""
    made: list[Node] = []
    held = ""
    for piece in span:
        held += " " if piece.spaced else ""
        if piece.change:
            made += [held, mark(piece)]
            held = ""
        else:
            held += piece.text
    return [*made, held]


def mark(piece: Piece) -> Element:
    """Returns a piece that is to be predicted: what the model sees, and what it was."""
    if piece.change == "kept":
        return element("mark", piece.text, class_="kept", title="left as it is, to be predicted")
    return element(
        "mark",
        element("small", piece.text),
        element("b", piece.original),
        class_=piece.change,
        title=f"the model sees {piece.text}; it was {piece.original}",
    )
