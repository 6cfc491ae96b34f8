import base64
import gzip
import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.report.rendering import CONTROLS, render_page
from tests.report.records import inputs
from tests.report.strict_html import read

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
