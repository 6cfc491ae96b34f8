"""The page of pretraining runs; tests/verbs/test_pretrain.py has the page of a real run."""

import json
from typing import Any

from bert_jax.report.charts import LINES
from bert_jax.report.pretraining.page import render
from tests.report.records import EVIL, pretraining_run
from tests.report.strict_html import Document, items, read, rows, words


def charts(document: Document) -> dict[str, Any]:
    """Returns the specification of each chart by its title."""
    return {
        words(figure[0][0]): json.loads(figure.findtext("script") or "")
        for figure in document.root.iter("figure")
    }


def points(spec: Any) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in spec["data"]["values"]:
        found.setdefault(row["line"], []).append((row["x"], row["y"]))
    return found


def texts(spec: Any) -> list[tuple[float, str]]:
    """Returns the places and texts of lines and symbols."""
    layers = [layer["data"]["values"] for layer in spec["layer"][1:]]
    return [(row.get("x", row.get("y")), row["text"]) for layer in layers for row in layer]


def test_a_run_with_sets_shows_its_start_gain_and_events() -> None:
    document = read(render([pretraining_run()], footer="the end"))
    assert '<script>alert("x")</script>' in document.text
    found = charts(document)
    assert list(found)[1:] == [
        *("replaced_auc", "learning_rate", "tokens_per_second", "mfu", "domain against general"),
    ]
    loss = points(found["mlm_loss"])
    assert loss["domain"] == [(0, 4), (10, 3), (20, 2), (30, 1), (40, 0)]
    assert loss["training data"] == [(10, 3.5), (20, 2.5), (30, 1.5), (40, 0.5)]
    assert texts(found["mlm_loss"]) == [
        *((4, "start, domain"), (2, "start, general"), (3.5, "start, ema.domain")),
        *((20, "phase 1"), (30, "↻"), (25, "✕")),
    ]
    # Without an averaged score of "general", there is no path of the average.
    assert points(found["domain against general"]) == {
        "mlm_loss": [(0, 0), (0.25, -1), (0.5, -2), (0.75, -3), (1, -4)]
    }
    scores = rows(document.root, "Scores on held-out data")
    assert scores["mlm_loss, domain"] == ["4.0000", "0", "0", "40"]
    assert scores["replaced_auc, domain"] == ["0", "0.5000", "0.5000", "40"]
    assert scores["mlm_loss, general"] == ["2.0000", "3.0000", "2.0000", "0"]
    events = rows(document.root, "In order of time")
    assert events == {"30": ["restart", "start 2"], "25": ["bad step", "skip, loss 99.00"]}
    assert rows(document.root, "Shares of the wall time")["train"] == ["97.30%"]
    (example,) = items(document.root)
    assert example.startswith("domain: a [MASK]")
    assert "b ✓ b 50.0%" in example


def test_a_run_of_two_objectives_shows_the_loss_of_each() -> None:
    names = ("next_token_loss", "next_token_loss", "mlm_loss")
    lines = [
        {"kind": kind, "step": step, f"{held_out}loss": step, f"{held_out}{name}": step}
        for step, name in enumerate(names)
        for kind, held_out in (("train", ""), ("validation", "training."))
    ]
    document = read(render([pretraining_run(metrics=lines)], footer=""))
    found = charts(document)
    assert list(found) == ["next_token_loss", "mlm_loss"]
    lines_of = points(found["mlm_loss"])
    assert lines_of == {"training data": [(2, 2)], "training": [(2, 2)]}
    scores = rows(document.root, "Scores on held-out data")
    assert list(scores) == ["next_token_loss, training", "mlm_loss, training"]


def test_a_chart_names_the_lines_that_it_leaves_out() -> None:
    sets = [f"{ema}set{at}.loss" for at in range(LINES // 2) for ema in ("", "ema.")]
    held_out = {"kind": "validation", "step": 0, **dict.fromkeys(sets, 1.0)}
    trained = {"kind": "train", "step": 1, "loss": 2.0}
    page = read(render([pretraining_run(metrics=[held_out, trained])], footer=""))
    assert len(points(charts(page)["loss"])) == LINES
    assert "training data" in points(charts(page)["loss"])
    assert f"Not shown: ema.set{LINES // 2 - 1}." in page.text


def test_a_comparison_shows_what_differs() -> None:
    runs = [pretraining_run(f"run {at}", general=at / 4) for at in range(LINES)]
    document = read(render(runs, footer=""))
    found = charts(document)
    paths = points(found["domain against general"])
    assert [path[-1] for path in paths.values()] == [(at, -4) for at in range(LINES)]
    assert list(paths) == [run.name for run in runs]
    assert texts(found["mlm_loss, domain"]) == [(4, "start")]
    assert rows(document.root, "Settings that differ") == {"seed": [run.name for run in runs]}
    assert items(document.root) == []


def test_a_young_run_has_a_page() -> None:
    empty = pretraining_run(metrics=[], filled=[])
    headings = [words(each) for each in read(render([empty], footer="")).root.iter("h2")]
    assert headings == ["What was trained", "Settings"]
    nan = {"kind": "validation", "step": 0, "mlm_loss": float("nan")}
    document = read(render([empty, pretraining_run(EVIL * 2, metrics=[nan])], footer=""))
    assert charts(document) == {}
