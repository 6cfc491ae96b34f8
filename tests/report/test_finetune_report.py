import base64
import gzip
import json
import re
from typing import Any

import numpy as np
import pytest

from bert_jax.report.finetuning.attention import AttentionExample, attention_example
from bert_jax.report.finetuning.page import ReportInputs, render
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
    weights,
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


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


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
    # Of SQuAD 1.1 nothing says how much better no answer would be.
    "answerable questions": task(
        "question_answering",
        records={"dev": [without(record, "null_score_difference") for record in QUESTIONS]},
        f1={"dev": [0.0, 1.0]},
    ),
    "choices": task("multiple_choice", records={"dev": choice(9)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_valid_loads_nothing_and_escapes_every_text(kind: str) -> None:
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


def test_the_header_has_the_best_metric_the_counts_and_the_time() -> None:
    text = read(render(inputs())).text
    assert "classification, 3 labels (no, yes, " in text
    assert "accuracy, dev 0.8431" in text
    assert "examples, dev 90" in text
    assert "step 180" in text
    assert "time 1 min 15 s" in text


def test_settings_notes_and_properties_of_the_run_are_listed() -> None:
    text = read(render(inputs(run={"versions": {"jax": "0.10"}, "checkpoint": "c/180"}))).text
    assert "optimizer.learning_rate 2e-05" in text
    assert "epochs 3" in text
    assert "versions.jax 0.10" in text
    assert "checkpoint c/180" in text
    assert "Notes on the data dev: <script>" in text


def test_the_best_evaluation_is_marked_in_the_curve_and_in_the_table() -> None:
    lines = metrics()
    lines[-1]["accuracy"] = 0.1  # the last evaluation is the worst
    document = read(render(inputs(metrics=lines)))
    (chart,) = (
        each for each in document.root.iter("figure") if words(each[0]) == "accuracy on dev"
    )
    assert "best 0.5120 at 120" in chart[1].attrib["aria-label"]
    best = [tag for tag in document.named("tr") if tag.attributes.get("class") == "best"]
    assert len(best) == 1
    assert "the best by accuracy is bold" in document.text


def test_of_several_dev_sets_each_has_its_curve_and_its_section() -> None:
    lines = [
        {"kind": "validation", "step": step, "matched/accuracy": 0.5, "other/accuracy": 0.4}
        for step in (10, 20)
    ]
    records = single(20, labels=("no", "yes"))
    document = read(
        render(
            inputs(
                labels=("no", "yes"),
                metrics=lines,
                scores={"matched": {"accuracy": 0.5}, "other": {"accuracy": 0.4, "f1": 0.3}},
                records={"matched": records, "other": records},
            )
        )
    )
    assert "matched/accuracy other/accuracy" in document.text
    assert "Predictions on matched" in document.text
    assert "Predictions on other" in document.text
    assert "accuracy 0.5000 0.4000 f1 – 0.3000" in document.text


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


def test_examples_without_a_label_are_counted_and_left_out() -> None:
    records = single(10, labels=("no", "yes"))
    for record in records[:4]:
        record["label"] = None
    text = read(render(inputs(labels=("no", "yes"), records={"dev": records}))).text
    assert "4 examples without a label, not included below." in text
    assert "macro average" in text
    for record in records:
        record["label"] = None
    unlabelled = read(render(inputs(labels=("no", "yes"), records={"test": records}))).text
    assert "10 examples without a label" in unlabelled
    assert "macro average" not in unlabelled


def test_questions_that_have_no_answer_count_as_labelled() -> None:
    text = read(render(inputs(**KINDS["questions"]))).text
    assert "without a label" not in text
    assert "1 question with F1 1." in text
    with pytest.raises(ValueError, match="found 0 F1 values for 2 questions"):
        render(inputs(**{**KINDS["questions"], "f1": {}}))


def test_seeds_give_mean_deviation_best_and_the_degenerate() -> None:
    rows = [
        {
            "seed": seed,
            "learning_rate": rate,
            "epochs": 3,
            "score": score,
            "degenerate": score < 0.7,
        }
        for seed, rate, score in ((1, 2e-5, 0.80), (2, 2e-5, 0.84), (1, 5e-5, 0.68))
    ]
    text = read(render(inputs(seeds=rows))).text
    assert "3 runs, of which 1 degenerate." in text
    assert "2e-05 · 3 2 0.8200 0.0283 0.8400" in text
    assert "5e-05 · 3 1 0.6800 – 0.6800" in text
    assert "1 5e-05 3 0.6800 degenerate" in text


def test_every_head_has_its_map_and_says_in_words_what_it_does() -> None:
    tokens = ("[CLS]", "it", "was", "[SEP]")
    maps = np.tile(np.eye(4, dtype=np.float32), (2, 3, 1, 1))
    maps[1, 2] = np.roll(np.eye(4), -1, axis=0)  # the next token; the last looks at the first
    document = read(render(inputs(attention=[attention_example(tokens, maps, title="A title")])))
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


def test_the_heads_of_two_sentences_are_separate_choices() -> None:
    document = read(render(inputs(attention=[example(), example()])))
    checked = [tag for tag in document.named("input") if "checked" in tag.attributes]
    assert [tag.attributes["name"] for tag in checked] == ["head-1", "head-2"]


def test_a_base_model_over_thirty_tokens_stays_small() -> None:
    for layers, heads, size, limit in ((6, 12, 30, 250_000), (12, 12, 128, 2_000_000)):
        tokens = [f"token{at}" for at in range(size)]
        made = attention_example(tokens, weights(layers, heads, size))
        with_maps = len(render(inputs(attention=[made]))) - len(render(inputs()))
        assert with_maps < limit


def test_a_long_sentence_is_cut_and_says_so() -> None:
    made = attention_example([f"t{at}" for at in range(100)], weights(1, 1, 100))
    assert "The first 96 of 100 tokens." in read(render(inputs(attention=[made]))).text


def test_padding_is_cut_off_and_weights_of_another_text_are_refused() -> None:
    tokens = ("[CLS]", "a", "[SEP]")
    padded = weights(2, 2, 3, padded=5)
    made = attention_example(tokens, padded)
    assert isinstance(made, AttentionExample)
    np.testing.assert_array_equal(made.weights, padded[:, :, :3, :3])
    for wrong in (padded[0], padded[..., :2], weights(2, 2, 2), weights(2, 2, 4), padded * 2):
        with pytest.raises(ValueError, match="found weights"):
            attention_example(tokens, wrong)


def test_the_inputs_have_what_a_plain_run_needs_and_no_more() -> None:
    needed = [name for name in ReportInputs._fields if name not in ReportInputs._field_defaults]
    assert needed == [
        "title", "kind", "problem", "labels", "best_metric", "scores", "records", "settings",
    ]  # fmt: skip
