from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.report.html import CONTROLS, clip, element, number, serialise, showing
from bert_jax.report.page import page, section
from tests.report.strict_html import Document, read

ANY = st.text(st.characters(), max_size=40)  # surrogates and control characters too


@given(texts=st.lists(ANY, max_size=5), value=ANY)
@settings(deadline=None, max_examples=100)
def test_any_text_comes_back_from_the_page_as_it_was_put_in(texts: list[str], value: str) -> None:
    children = [part for text in texts for part in (text, element("br"))]
    made = page(
        title="t",
        header=[],
        sections=[section("s", element("p", *children, title=value))],
        footer="f",
        script="",
    )
    made.encode()  # no lone surrogate is left
    document = read(made)
    (paragraph,) = (tag for tag in document.named("p") if tag.parents[-1] == "section")
    assert paragraph.attributes["title"] == CONTROLS.sub("\ufffd", value)
    found = "".join(text for parent, text in document.texts if parent == "p")
    assert found == CONTROLS.sub("\ufffd", "".join(texts)) + "f"


def test_children_stand_in_order_and_what_is_none_is_left_out() -> None:
    made = element("p", "a", None, element("b", "c"), "d", "e", class_="x", aria_label=None)
    assert serialise(made) == '<p class="x">a<b>c</b>de</p>'


def test_what_html_forbids_is_replaced() -> None:
    assert serialise(element("p", "a\x00b\x1b\ud800")) == "<p>a\ufffdb\ufffd\ufffd</p>"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.8431, "0.8431"),
        (1.0, "1.0000"),
        (88.2134, "88.21"),
        (408, "408"),
        (1204, "1,204"),
        (12345.6, "12,346"),
        (2e-5, "2.00e−05"),
        (-0.25, "−0.2500"),
        (0.0, "0"),
        (float("nan"), "nan"),
        (float("-inf"), "−inf"),
    ],
)
def test_figures_are_written_for_reading(value: float, expected: str) -> None:
    assert number(value) == expected


def test_how_many_are_shown_is_said_in_words() -> None:
    assert showing(25, 312, "error") == "Showing 25 of 312 errors."
    assert showing(7, 7, "error") == "All 7 errors."
    assert showing(1, 1, "question", " with F1 1") == "1 question with F1 1."
    assert showing(0, 0, "sentence", " with errors") == "No sentences with errors."
    assert clip("abcdef", limit=3) == "abc …"
    assert clip("abc", limit=3) == "abc"


def test_sections_of_one_name_get_anchors_of_their_own() -> None:
    sections = [section("Dev & test"), section("Dev, test"), section("日本")]
    made = page(title="t", header=[], sections=sections, footer="", script="")
    document = read(made)
    found = [tag.attributes["id"] for tag in document.named("section")]
    assert found == ["dev-test", "dev-test-2", "section"]


def test_the_strict_reader_sees_what_it_is_there_to_see() -> None:
    for wrong in (
        "<!DOCTYPE html><p><b></p></b>",
        "<!DOCTYPE html><p>",
        '<!DOCTYPE html><p id="a"></p><p id="a"></p>',
        "<!DOCTYPE html><blink></blink>",
        "<p></p>",
    ):
        with pytest.raises(AssertionError):
            Document(wrong)
