"""The page about a scored corpus."""

import collections
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.corpus.summary import BIN, Histogram
from bert_jax.model.section import HeadsSection
from tests.corpus.files import CLASSES, REGRESSION, SEVERAL, TAGS, VECTORS, config, rows_of, texts
from tests.project import ok
from tests.report.strict_html import Document, items, read, rows

EVIL = '</p><script>"&'
EVIL_CLASSES = CLASSES.model_copy(update={"labels": ("bad", "fair", EVIL)})


def write_lines(path: Path, lines: list[str | None]) -> None:
    rows = [{"id": f"{path.stem}{at}", "text": text} for at, text in enumerate(lines)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def page(directory: Path, **score: Any) -> Document:
    """Scores `directory`/in in this process, and returns the page."""
    path = config(directory, directory / "in", workers=1, **score)
    assert f"report: {directory / 'out' / '_report.html'}" in ok("score", path).splitlines()
    return read((directory / "out" / "_report.html").read_text(encoding="utf-8"))


def layers(document: Document) -> list[Any]:
    """Returns the layers of the page's only chart, if it has one."""
    found = [text for parent, text in document.texts if parent == "script" and '"layer"' in text]
    specs = [json.loads(text) for text in found if text.startswith("{")]
    assert len(specs) <= 1
    return [specs[0]["data"]["values"], *specs[0]["layer"][1:]] if specs else []


def figures(document: Document) -> dict[str, str]:
    names, values = (
        [text for parent, text in document.texts if parent == each] for each in ("dt", "dd")
    )
    return dict(zip(names, values, strict=True))


def test_the_page_has_every_count_and_escapes_texts(tmp_path: Path) -> None:
    lines = [f"{text} {EVIL}" for text in texts(60, seed=1)]
    for name, own in (("a", lines[:40]), ("b", [*lines[40:], None])):
        write_lines(tmp_path / "in" / f"{name}.jsonl", own)
    config(tmp_path, tmp_path / "in", heads=EVIL_CLASSES)
    predicted = bert_jax.load(tmp_path / "model" / "run").predict(lines)
    values = np.array([record["probabilities"][EVIL] for record in predicted])
    threshold = round(float(np.median(values)), 4)
    keep = f"probabilities[{json.dumps(EVIL)}] >= {threshold} and label != 'none'"
    document = page(tmp_path, keep=keep, on_error="skip")

    kept = int((values >= threshold).sum())
    assert len(rows_of(tmp_path / "out")) == kept
    shown = figures(document)
    assert shown["documents"] == "60"
    assert shown["kept"] == f"{kept} ({kept / 60:.1%})"
    assert (shown["dropped"], shown["skipped"], shown["parts"]) == (str(60 - kept), "1", "2")
    assert list(rows(document.root, "could not be read")) == ["b.parquet"]

    counts = collections.Counter(record["prediction"] for record in predicted)
    labels = rows(document.root, "Documents by label")
    assert labels == {
        name: [f"{count / 60:.2%}", str(count)] for name, count in counts.most_common()
    }
    bars, mark = layers(document)
    assert mark["data"]["values"] == [{"x": threshold, "name": "threshold"}]
    edges = [bars[0]["x"], *(bar["end"] for bar in bars)]
    assert [bar["y"] for bar in bars] == np.histogram(values, edges)[0].tolist()
    assert sum(bar["y"] for bar in bars) == 60

    nearest = [
        f"{name}{at}"
        for name, own in (("a", values[:40]), ("b", values[40:]))
        for at in np.argsort(np.abs(own - threshold))[:5]
    ]
    near = items(document.root)
    assert {item.rpartition(" id ")[2] for item in near} == {*nearest}
    assert all(f'probabilities["{EVIL}"]' in item for item in near)
    assert any(item.startswith(f"{lines[int(name[1:])]:.50}") for item in near for name in nearest)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [REGRESSION, SEVERAL, TAGS, VECTORS])
def test_the_page_fits_every_kind_of_result(tmp_path: Path, heads: HeadsSection) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [*texts(30, seed=2)])
    config(tmp_path, tmp_path / "in", heads=heads)
    document = page(tmp_path, keep="score > -99" if heads is REGRESSION else None)
    drawn, found = layers(document), list(rows_of(tmp_path / "out").values())
    assert len(drawn) == {REGRESSION: 2, SEVERAL: 1, TAGS: 0, VECTORS: 0}[heads]
    if drawn:
        assert sum(bar["y"] for bar in drawn[0]) == 30
    labels = {SEVERAL: "label", TAGS: "tags"}.get(heads)
    if labels is None:
        assert "by label" not in document.text
        return
    counts = collections.Counter(label for row in found for label in row[labels])
    table = rows(document.root, "by label")
    assert {name: int(cells[-1]) for name, cells in table.items()} == counts


@pytest.mark.slow
def test_the_page_of_an_empty_corpus(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [])
    config(tmp_path, tmp_path / "in", heads=CLASSES)
    document = page(tmp_path, keep='probabilities["good"] > 0.5')
    assert layers(document) == []
    assert figures(document)["documents"] == "0"
    assert "No documents." in document.text


def test_a_histogram_doubles_its_bins_for_far_values() -> None:
    values = np.random.default_rng(0).normal(0, 40, 5000).astype(np.float32)
    parts = [Histogram.of(each) for each in np.split(values, 10)]
    whole = Histogram.sum(parts)
    assert whole == Histogram.sum([Histogram.sum(parts[:3]), *parts[3:]])
    width = BIN * 2**whole.doublings
    first, last = min(whole.counts), max(whole.counts)
    assert 32 < last - first < 128
    expected = np.histogram(values, np.arange(first, last + 2) * width)[0]
    found = [whole.counts.get(at, 0) for at in range(first, last + 1)]
    assert np.abs(found - expected).sum() <= 2  # rounding at an edge
