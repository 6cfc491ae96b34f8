import base64
import gzip
import hashlib
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.report.rendering import (
    CONTROLS,
    Contents,
    Share,
    clip,
    number,
    render_page,
    showing,
)
from tests.report.records import inputs
from tests.report.strict_html import Document, read, rows

ANY = st.text(st.characters(), max_size=40)  # surrogates and control characters too


def page(title: str, *pairs: tuple[str, object]) -> str:
    """A page with two tables of those pairs."""
    return render_page(
        "finetuning.html", title=title, about=title, figures=pairs, footer=title, inputs=inputs(),
        charts=[], ranked=[], evaluations=None, scores=[], splits=[], sweep=None, attention=[],
        settings=pairs, run=pairs,
    )  # fmt: skip


@given(text=ANY, value=ANY)
@settings(deadline=None, max_examples=100)
def test_any_text_comes_back_from_the_page_as_it_was_put_in(text: str, value: str) -> None:
    made = page(text, (text, value))
    made.encode()  # no lone surrogate is left
    document = read(made)
    (heading,) = document.root.iter("h1")
    assert (heading.text or "") == CONTROLS.sub("\ufffd", text)
    found = [cell.text or "" for cell in document.root.iter("td")]
    assert found == [CONTROLS.sub("\ufffd", value)] * 2


def test_numbers_and_shares_in_tables_are_formatted() -> None:
    root = read(page("t", ("a", 0.5), ("b", 1204), ("c", Share(0.1)))).root
    assert rows(root, "Configuration") == {"a": ["0.5000"], "b": ["1,204"], "c": ["10.00%"]}
    assert not [tag for tag in root.iter("span") if tag.get("class") == "bar"]
    root = read(page("t", ("a", Share(0.1, 1.5)))).root
    bars = [tag.attrib["style"] for tag in root.iter("span") if tag.get("class") == "bar"]
    assert bars == ["--share:1.000"] * 2


def test_the_policy_lets_no_address_load_and_no_script_run_but_ours() -> None:
    document = read(page("t"))
    (policy,) = (
        tag.attributes["content"]
        for tag in document.named("meta")
        if tag.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    scripts = {
        tag.attrib.get("id"): tag.text or ""
        for tag in document.root.iter("script")
        if tag.attrib.get("type") != "application/json"
    }
    library = gzip.decompress(base64.b64decode(scripts.pop("vega")))
    (script,) = scripts.values()
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'"
        for each in (script.encode(), library)
    )
    assert policy.split("; ") == [
        "default-src 'none'", "style-src 'unsafe-inline'", f"script-src {hashes}",
    ]  # fmt: skip


def test_the_chart_library_is_small_and_its_licence_is_with_it() -> None:
    templates = resources.files("bert_jax.report") / "templates"
    assert len((templates / "vega.js.gz").read_bytes()) < 320_000
    assert "Interactive Data Lab" in (templates / "vega.LICENSE").read_text()


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
def test_numbers_are_formatted_for_reading(value: float, expected: str) -> None:
    assert number(value) == expected


def test_counts_are_put_in_words() -> None:
    assert showing(25, 312, "error") == "Showing 25 of 312 errors."
    assert showing(7, 7, "error") == "All 7 errors."
    assert showing(1, 1, "question", " with F1 1") == "1 question with F1 1."
    assert showing(0, 0, "sentence", " with errors") == "No sentences with errors."
    assert clip("abcdef", 3) == "abc …"
    assert clip("abc", 3) == "abc"


def test_sections_of_one_name_get_their_own_anchors() -> None:
    contents = Contents()
    found = [contents.add(heading) for heading in ("Dev & test", "Dev, test", "日本")]
    assert found == ["dev-test", "dev-test-2", "section"]
    assert [*contents.entries.values()] == ["Dev & test", "Dev, test", "日本"]


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
