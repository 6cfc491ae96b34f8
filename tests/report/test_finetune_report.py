import base64
import gzip
import hashlib
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.report.finetuning.attention import attention_view
from bert_jax.report.finetuning.embeddings import embeddings
from bert_jax.report.finetuning.page import render
from bert_jax.report.rendering import CONTROLS, render_page
from tests.report.records import (
    EVIL,
    choice,
    example,
    inputs,
    metrics,
    multi,
    numbers,
    question,
    single,
    tagged,
    vectors,
)
from tests.report.strict_html import read, words

QUESTIONS = [
    question(context=f"Ada wrote {EVIL}", gold=(("Ada", 0),), prediction="wrote", start=4),
    question(context="", gold=(), prediction="", start=None),
]
ALPHABET = tuple("abcdefghijklmnopqrstuvwxyz")
SCORED = {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2.0}


def task(kind: str, **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "problem": None, "labels": (), **changes}


KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "many classes": {"labels": ALPHABET, "records": {"dev": single(30, labels=ALPHABET)}},
    "several labels": {
        "problem": "multi_label",
        "labels": ("a", EVIL),
        "records": {"dev": multi(50, labels=("a", EVIL))},
    },
    "numbers": {"problem": "regression", "labels": ("score",), "records": {"dev": numbers(40)}},
    "words": task(
        "token_classification",
        records={"dev": tagged(40)},
        labels=("O", "B-PER", "I-PER", "B-LOC"),
        entities={"dev": {EVIL: SCORED}},
    ),
    "questions": task("question_answering", records={"dev": QUESTIONS}, f1={"dev": [0.0, 1.0]}),
    # SQuAD 1.1: records have no null score.
    "answerable questions": task(
        "question_answering",
        records={"dev": [{k: v for k, v in q.items() if "null" not in k} for q in QUESTIONS]},
        f1={"dev": [0.0, 1.0]},
    ),
    "scored pairs": task(
        "sentence embeddings",
        records={"dev": numbers(4)},
        views={"dev": embeddings(vectors(20, scored=True))},
    ),
    "pairs": task(
        "sentence embeddings",
        records={"dev": numbers(4)},
        views={"dev": embeddings(vectors(20))},
    ),
    "one pair": task(
        "sentence embeddings",
        records={"dev": numbers(1)},
        views={"dev": embeddings(vectors(1))},
    ),
    "choices": task("multiple_choice", records={"dev": choice(9)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_valid_self_contained_and_escaped(kind: str) -> None:
    made = render(inputs(attention=[example(), example()], **KINDS[kind]))
    document = read(made)
    for script in document.root.iter("script"):
        if script.attrib.get("type") == "application/json":
            json.loads(script.text or "")
        else:
            assert "alert(" not in (script.text or "")
    assert made.count("<script") == made.count("</script>") == len(document.named("script"))
    assert '<script>alert("x")</script>' in document.text
    assert not re.search(r"https?:", made)
    assert "\x00" not in made


def test_the_best_evaluation_is_marked() -> None:
    lines = metrics()
    lines[-1]["accuracy"] = 0.1  # the last evaluation is the worst
    document = read(render(inputs(metrics=lines)))
    (chart,) = (
        each for each in document.root.iter("figure") if words(each[0]) == "accuracy on dev"
    )
    assert "best 51.20% at 120" in chart[1].attrib["aria-label"]
    best = [tag for tag in document.named("tr") if tag.attributes.get("class") == "best"]
    assert len(best) == 1
    assert "the best by accuracy, is bold" in document.text


def test_of_equal_evaluations_the_kept_one_is_marked() -> None:
    lines = metrics()
    for line in lines:
        if line["kind"] == "validation":
            line["accuracy"] = 0.75
    for kept in (60, 120, 180):
        document = read(render(inputs(metrics=lines, run={"step": kept})))
        (row,) = (each for each in document.root.iter("tr") if each.attrib.get("class") == "best")
        assert words(row).split() == [str(kept), "0.5000", "75.00%"]
        labels = [each.attrib.get("aria-label", "") for each in document.root.iter("div")]
        assert sum(f"best 75.00% at {kept}" in label for label in labels) == 1


def test_an_accuracy_is_a_percentage_everywhere() -> None:
    seeds = [
        {"seed": seed, "learning_rate": 1e-5, "epochs": 1, "score": 0.75, "degenerate": None}
        for seed in (1, 2)
    ]
    made = render(inputs(scores={"dev": {"accuracy": 0.75, "f1": 0.5}}, seeds=seeds))
    text = read(made).text
    assert "accuracy, dev 75.00%" in text
    assert "accuracy 75.00% f1 0.5000" in text
    assert "1e-05 · 1 2 75.00% 0.00% 75.00%" in text
    assert "0.7500" not in text


def test_each_dev_set_has_a_curve_and_a_section() -> None:
    lines = [
        {"kind": "validation", "step": step, "matched/accuracy": 0.5, "other/accuracy": 0.4}
        for step in (10, 20)
    ]
    records = single(20, labels=("no", "yes"))
    made = inputs(
        labels=("no", "yes"),
        metrics=lines,
        scores={"matched": {"accuracy": 0.5}, "other": {"accuracy": 0.4, "f1": 0.3}},
        records={"matched": records, "other": records},
    )
    text = read(render(made)).text
    assert "matched/accuracy other/accuracy" in text
    assert "Predictions on matched" in text
    assert "Predictions on other" in text
    assert "accuracy 50.00% 40.00% f1 – 0.3000" in text


def test_diverged_and_empty_runs_still_give_a_report() -> None:
    nan = float("nan")
    lines = [
        {"kind": "train", "step": 1, "loss": nan, "learning_rate": 0.0},
        {"kind": "validation", "step": 1, "accuracy": nan},
    ]
    text = read(render(inputs(metrics=lines, scores={"dev": {"accuracy": nan}}))).text
    assert "accuracy, dev nan" in text
    bare = inputs(metrics=[], records={}, scores={}, settings={}, notes=[], run={})
    assert "Training" not in read(render(bare)).text


def test_every_head_has_a_map_and_a_description() -> None:
    tokens = ("[CLS]", "it", "was", "[SEP]")
    maps = np.tile(np.eye(4, dtype=np.float32), (2, 3, 1, 1))
    maps[1, 2] = np.roll(
        np.eye(4), -1, axis=0
    )  # each token attends to the next one, the last to the first
    document = read(render(inputs(attention=[attention_view(tokens, maps, title="A title")])))
    radios = document.named("input")
    assert len(radios) == 6
    assert {tag.attributes["name"] for tag in radios} == {"head-1"}
    assert [tag.attributes["value"] for tag in radios if "checked" in tag.attributes] == ["1-1"]
    alts = [tag.attributes["aria-label"] for tag in radios]
    assert alts[0] == 'Layer 1, head 1: 100% on itself; most from "[CLS]" to "[CLS]" (1.00)'
    assert alts[5] == 'Layer 2, head 3: 75% on the token after; most from "[CLS]" to "it" (1.00)'
    (box,) = (tag for tag in document.root.iter("div") if tag.get("class") == "attention")
    spec, levels = (tag.text or "" for tag in box.iter("script"))
    assert json.loads(spec)["tokens"] == list(tokens)
    stored = np.frombuffer(gzip.decompress(base64.b64decode(levels)), np.uint8)
    np.testing.assert_array_equal(stored.reshape(maps.shape), 255 * maps)
    assert "A title" in document.text


ANY = st.text(st.characters(), max_size=40)  # with surrogates and control characters


def page(title: str, *pairs: tuple[str, object]) -> str:
    """Returns a report with `pairs` as its settings and run facts."""
    return render_page(
        "finetuning.html", title=title, about=title, figures=pairs, footer=title, inputs=inputs(),
        charts=[], ranked=[], evaluations=None, scores=[], splits=[], sweep=None, attention=[],
        settings=pairs, run=pairs,
    )  # fmt: skip


@given(text=ANY, value=ANY)
@settings(deadline=None, max_examples=100)
def test_any_text_survives_the_page(text: str, value: str) -> None:
    made = page(text, (text, value))
    made.encode()  # fails for a lone surrogate
    document = read(made)
    (heading,) = document.root.iter("h1")
    assert (heading.text or "") == CONTROLS.sub("\ufffd", text)
    found = [cell.text or "" for cell in document.root.iter("td")]
    assert found == [CONTROLS.sub("\ufffd", value)] * 2


def test_the_policy_allows_only_our_scripts() -> None:
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
