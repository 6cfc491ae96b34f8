from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from bert_jax.report.finetuning import answers, classification, tokens
from bert_jax.report.rendering import render_fragment
from tests.report.records import choice, multi, question, tagged
from tests.report.strict_html import items, read_section, rows


def shown(view: Any) -> Element:
    """Returns a rendered section."""
    return read_section(render_fragment(view["template"], view=view))


def record(number: int, gold: str, predicted: str, share: float) -> dict[str, object]:
    odds = {"a": 0.0, "b": 0.0, "c": 0.0, gold: 1 - share, predicted: share}
    return {"id": str(number), "text": f"text {number}", "label": gold, "prediction": predicted,
            "probabilities": odds}  # fmt: skip


# Correct predictions: 2 of 3 for a, 1 of 2 for b. c is predicted once, but never gold.
HAND = [
    record(0, "a", "a", 0.9),
    record(1, "a", "a", 0.6),
    record(2, "a", "c", 0.7),
    record(3, "b", "b", 0.8),
    record(4, "b", "a", 0.95),
]


def test_scores_by_class_equal_a_computation_by_hand() -> None:
    found = rows(shown(classification.single_label(HAND, labels="abc")), "by class")
    assert found["a"] == ["0.6667", "0.6667", "0.6667", "3"]
    assert found["b"] == ["1.0000", "0.5000", "0.6667", "2"]
    assert found["c"] == ["0", "0", "0", "0"]
    assert found["macro average"] == ["0.5556", "0.3889", "0.4444", "5"]
    assert found["weighted average"] == ["0.8000", "0.6000", "0.6667", "5"]


def test_each_label_has_a_row_and_the_worst_comes_first() -> None:
    names = ("a", "b", "c")
    hand = [
        {"id": "0", "text": "t0", "label": ["a"], "prediction": ["a"],
         "probabilities": {"a": 0.9, "b": 0.1, "c": 0.1}},
        {"id": "1", "text": "t1", "label": ["a", "b"], "prediction": ["c"],
         "probabilities": {"a": 0.4, "b": 0.3, "c": 0.9}},
        {"id": "2", "text": "t2", "label": [], "prediction": ["a"],
         "probabilities": {"a": 0.6, "b": 0.1, "c": 0.1}},
    ]  # fmt: skip
    root = shown(classification.multi_label(hand, labels=names))
    found = rows(root, "by label")
    assert found["a"] == ["0.5000", "0.5000", "0.5000", "2"]
    assert found["b"] == ["0", "0", "0", "1"]
    assert found["macro average"] == ["0.1667", "0.1667", "0.1667", "3"]
    first, second = items(root)
    assert "missed a (0.400), b (0.300) wrongly predicted c (0.900)" in first
    assert "correct none missed none wrongly predicted a (0.600)" in second
    assert "All 2 examples with a wrong label." in "".join(root.itertext())
    assert (
        len(items(shown(classification.multi_label(multi(99, labels=names), labels=names)))) == 25
    )


def test_sentences_frame_differing_spans() -> None:
    records = tagged(2)
    root = shown(tokens.labelled_words(records, labels=("O", "B-PER", "I-PER", "B-LOC"), entities={
        "PER": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2.0}
    }))  # fmt: skip
    assert rows(root, "by entity type") == {"PER": ["0", "0", "0", "2"]}
    assert rows(root, "by label")["B-PER"] == ["0.6667", "1.0000", "0.8000", "2"]
    worse = items(root)[0]
    assert worse.startswith("gold Ada")
    assert worse.endswith("id s0")  # two span errors; the other sentence has one
    marks = [
        ("".join(mark.itertext()), mark.get("class"), mark.get("title"))
        for mark in root.iter("span")
        if "span" in (mark.get("class") or "")
    ]
    assert ("ParisLOC", "span", None) in marks  # this span of s1 is both gold and predicted
    assert ("ParisLOC ✗", "span wrong", "missed") in marks
    assert ("ParisPER ✗", "span wrong", "wrong") in marks


CONTEXT = "Ada Lovelace wrote the first program in 1843 in London."


def marks(record: dict[str, object]) -> list[tuple[str, str]]:
    return [(part.highlight, part.text) for part in answers.segments(record) if part.highlight]


def test_answers_are_highlighted_in_their_context() -> None:
    made = question(context=CONTEXT, gold=(("Ada Lovelace", 0), ("Ada", 0)),
                    prediction="Lovelace wrote", start=4)  # fmt: skip
    assert marks(made) == [
        ("gold", "Ada "), ("gold predicted", "Lovelace"), ("predicted", " wrote"),
    ]  # fmt: skip
    nothing = question(context=CONTEXT, gold=(), prediction="", start=None)
    assert marks(nothing) == []


def test_choices_show_probabilities_and_the_right_one() -> None:
    root = shown(classification.choices(choice(6)))
    found = items(root)
    assert len(found) == 4 + 2
    assert "a ✗ chosen 0.600" in found[0]
    assert "✓ right 0.300" in found[0]
    assert "a ✓ right, chosen 0.600" in found[-1]
    assert rows(root, "position of the right choice") == {
        str(place): ["2100%", "0", "0"] for place in (1, 2, 3)
    }
    shares = [bar.attrib["style"] for bar in root.iter("span") if bar.get("class") == "bar"]
    assert shares[:3] == ["--share:0.600", "--share:0.300", "--share:0.100"]
    np.testing.assert_equal(len(shares), 18)
