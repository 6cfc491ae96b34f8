"""One of several endings: what the model thought of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.report.charts import bar, heat_map
from bert_jax.report.html import Element, Node, clip, element, showing
from bert_jax.report.page import SHOWN, TEXT_LIMIT, examples, facts, quiet

Record = Mapping[str, Any]

RIGHT: Final = 5  # examples answered rightly


def choices(records: Sequence[Record]) -> list[Node]:
    """Returns the most confident errors with the odds of every choice, and a few right ones.

    Args:
        records: labelled ones.
    """
    wrong = [record for record in records if record["label"] != record["prediction"]]
    wrong.sort(key=_confidence, reverse=True)
    right = [record for record in records if record["label"] == record["prediction"]]
    return [
        _places(records),
        element("h3", "Most confident errors"),
        quiet(showing(min(SHOWN, len(wrong)), len(wrong), "error")),
        examples(_example(record) for record in wrong[:SHOWN]),
        element("h3", "Right choices"),
        quiet(showing(min(RIGHT, len(right)), len(right), "example")),
        examples(_example(record) for record in right[:RIGHT]),
    ]


def _places(records: Sequence[Record]) -> Element:
    """Which place was right and which was chosen: a model that likes one place shows here."""
    places = max(len(record["choices"]) for record in records)
    counts = np.zeros((places, places), np.int64)
    for record in records:
        counts[record["label"], record["prediction"]] += 1
    names = [str(place + 1) for place in range(places)]
    caption = "Rows: the place of the right choice. Columns: the place of the one chosen."
    return heat_map(counts, rows=names, columns=names, corner="right \\ chosen", caption=caption)


def _example(record: Record) -> Element:
    listed = []
    odds = zip(record["choices"], record["probabilities"], strict=True)
    for at, (text, share) in enumerate(odds):
        said = [
            *(["✓ right"] if at == record["label"] else []),
            *(["chosen" if at == record["label"] else "✗ chosen"] * (at == record["prediction"])),
        ]
        listed.append(
            element(
                "li",
                clip(str(text), limit=TEXT_LIMIT),
                element("span", f" {', '.join(said)}", class_="mark") if said else None,
                element("span", bar(share), f"{share:.3f}", class_="odds"),
            )
        )
    return element(
        "li",
        element("p", clip(str(record["text"]), limit=TEXT_LIMIT)),
        element("ol", *listed, class_="choices"),
        facts([("id", str(record["id"]))]),
    )


def _confidence(record: Record) -> float:
    return float(record["probabilities"][record["prediction"]])
