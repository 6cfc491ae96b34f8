"""Compares `bert-jax features` with Hugging Face, and its output formats with each other."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import BertModel

from bert_jax import narration
from bert_jax.feature_extraction.extractor import (
    ExtractionSettings,
    FeatureExtractor,
    select_layers,
)
from bert_jax.feature_extraction.texts import InputText, TextColumns, read_texts
from bert_jax.inference.bucketed import model_of_run
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.run_directory import open_run
from tests.feature_extraction.runs import (
    features,
    make_run,
    pieces_of,
    reference_states,
    texts,
    write_lines,
)
from tests.support import relative_error

FEW = [*texts(3), "w1x1", "w59"]  # every length compiles a program


# Expected selections for five layers.
CHOSEN: dict[str, Any] = {
    "embeddings": lambda s: s[0],
    "second-to-last": lambda s: s[4],
    "last": lambda s: s[5],
    "sum-last-four": lambda s: s[2] + s[3] + s[4] + s[5],
    "concat-last-four": lambda s: np.concatenate([s[2], s[3], s[4], s[5]], axis=-1),
    "sum-all": lambda s: s[1] + s[2] + s[3] + s[4] + s[5],
    "3,0": lambda s: np.concatenate([s[3], s[0]], axis=-1),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BertModel]:
    return make_run(tmp_path_factory.mktemp("features"))


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


def extract(run: Path, tmp_path: Path, lines: list[str], *options: object) -> dict[str, np.ndarray]:
    """Runs `features` on texts, and loads the resulting .npz."""
    source = write_lines(tmp_path / "in.txt", lines)
    result = features(run, source, tmp_path / "out.npz", "--force", *options)
    assert result.exit_code == 0, (result.output, result.exception)
    return load(tmp_path / "out.npz")


def close(found: np.ndarray, expected: list[np.ndarray]) -> None:
    np.testing.assert_allclose(found, np.concatenate(expected), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", CHOSEN)
def test_layers_combine_as_named(layers: str) -> None:
    states = np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32)
    found = select_layers(layers, depth=5)
    np.testing.assert_allclose(
        found.combine(jnp.asarray(states)), CHOSEN[layers](states), rtol=1e-6
    )
    assert found.width(3) == CHOSEN[layers](states).shape[-1]


def test_pieces_and_layers_equal_hugging_face(
    imported: tuple[Path, BertModel], tmp_path: Path
) -> None:
    run, model = imported
    every = [np.concatenate(reference_states(model, text), axis=-1) for text in FEW]
    options = ("--layers", "0,1,2,3,4,5", "--level", "token")
    tokens = extract(run, tmp_path, FEW, *options)
    close(tokens["vectors"], [states[1:-1] for states in every])
    assert tokens["tokens"].tolist() == [piece for text in FEW for piece in pieces_of(text)]


def test_every_level_is_computed_from_hugging_faces_states(
    imported: tuple[Path, BertModel], tmp_path: Path
) -> None:
    run, model = imported
    chosen = [CHOSEN["concat-last-four"](reference_states(model, text)) for text in FEW]
    layers = ("--layers", "concat-last-four")
    mean = extract(run, tmp_path, FEW, *layers)
    close(mean["vectors"], [states.mean(axis=0, keepdims=True) for states in chosen])
    cls = extract(run, tmp_path, FEW, *layers, "--pool", "cls")
    close(cls["vectors"], [states[:1] for states in chosen])
    words = extract(run, tmp_path, FEW, *layers, "--level", "word")
    assert words["words"].tolist() == [word for text in FEW for word in text.split()]
    assert np.diff(words["offsets"]).tolist() == [len(text.split()) for text in FEW]
    close(
        words["vectors"],
        [word_means(text, states) for text, states in zip(FEW, chosen, strict=True)],
    )


def word_means(text: str, states: np.ndarray) -> np.ndarray:
    """Returns the mean over the pieces of each word."""
    means, at = [], 1
    for word in text.split():
        size = 2 if "x" in word else 1
        means.append(states[at : at + size].mean(axis=0))
        at += size
    return np.stack(means)


def test_pairs_have_spans_and_longest_first_truncation(
    imported: tuple[Path, BertModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "LAST_LINE_SECONDS", 0.0)
    run, model = imported
    long = " ".join(f"w{number}" for number in range(30))
    table = [{"a": "w1x2 w3", "b": "w4 w5x6"}, {"a": long, "b": "w7 w8"}]
    source = write_lines(tmp_path / "in.jsonl", list(map(json.dumps, table)))
    options = ("--column", "a", "--pair-column", "b", "--level", "word", "--layers", "last")
    result = features(run, source, tmp_path / "o.npz", *options, "--max-length", "12")
    assert result.exit_code == 0, result.output
    assert "1 texts cut at 12 pieces" in result.output
    assert "extracting: 2 texts: " in result.stderr
    found = load(tmp_path / "o.npz")
    # 12 pieces: three special pieces, seven of the first text and two of the second.
    assert found["words"].tolist() == [
        *("w1x2", "w3", "w4", "w5x6"),
        *(f"w{number}" for number in range(7)),
        *("w7", "w8"),
    ]
    assert found["spans"].tolist() == [0, 0, 1, 1, *[0] * 7, 1, 1]
    states = reference_states(model, " ".join(long.split()[:7]), "w7 w8")[-1]
    at = [*range(1, 8), 9, 10]
    np.testing.assert_allclose(found["vectors"][4:], states[at], atol=2e-5)


@pytest.mark.parametrize("level", ["word", "sentence"])
def test_formats_hold_the_same_features(
    imported: tuple[Path, BertModel], tmp_path: Path, level: str
) -> None:
    run, _ = imported
    lines = [*texts(70, seed=1, longest=8), "", "w1"]
    npz = extract(run, tmp_path, lines, "--level", level)
    for suffix in ("parquet", "jsonl"):
        output = tmp_path / f"out.{suffix}"
        result = features(run, tmp_path / "in.txt", output, "--level", level)
        assert result.exit_code == 0, result.output
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["index"] for row in rows] == list(range(len(lines)))
    assert rows == [
        as_float32(json.loads(line)) for line in (tmp_path / "out.jsonl").read_text().splitlines()
    ]
    if level == "sentence":
        np.testing.assert_array_equal(npz["vectors"], [row["vector"] for row in rows])
        return
    for name in ("vectors", f"{level}s", "spans"):
        assert npz[name].tolist() == [value for row in rows for value in row[name]]
    assert np.diff(npz["offsets"]).tolist() == [len(row["spans"]) for row in rows]


def as_float32(row: dict[str, Any]) -> dict[str, Any]:
    """Parses a line of a .jsonl. Vectors become float32."""
    vectors = {
        name: np.asarray(row[name], np.float32).tolist()
        for name in ("vector", "vectors")
        if name in row
    }
    return row | vectors


def test_batch_size_and_devices_do_not_change_features(
    imported: tuple[Path, BertModel],
) -> None:
    run = open_run(imported[0])
    lines = texts(90, seed=2, longest=12)
    found = {
        (batch_size, one_device): vectors(run, lines, batch_size=batch_size, one_device=one_device)
        for batch_size, one_device in ((1, True), (32, True), (7, False))
    }
    reference = found[1, True]
    assert len(np.unique(reference.round(3), axis=0)) == len(set(lines))
    for other in found.values():
        assert relative_error(other, reference) < 1e-6


def settings(**changes: Any) -> ExtractionSettings:
    return ExtractionSettings(layers=select_layers("last", depth=5), **changes)


def vectors(run: Any, lines: list[str], *, batch_size: int, one_device: bool) -> np.ndarray:
    """Returns the features of texts: means of the last layer."""
    model = model_of_run(run, checkpoint="last", mesh=open_mesh(one_device=one_device))
    assert model.loaded.mesh.size == (1 if one_device else 8)
    extractor = FeatureExtractor(settings(batch_size=batch_size, max_length=40), model)
    sources = [InputText(number, line) for number, line in enumerate(lines, start=1)]
    made = list(extractor(sources))
    assert [feature.source for feature in made] == sources
    # Three texts do not justify a program for length 8: all rows have 12 positions.
    assert extractor.counts.positions % 12 == 0
    return np.concatenate([feature.vectors for feature in made])


def test_empty_and_long_texts_are_reported(
    imported: tuple[Path, BertModel], tmp_path: Path
) -> None:
    run, model = imported
    lines = ["w1", "", " ".join(["w2"] * 10_000), "   "]
    source = write_lines(tmp_path / "in.txt", lines)
    result = features(run, source, tmp_path / "o.npz", "--layers", "last")
    assert result.exit_code == 0, result.output
    assert "1 texts cut at 40 pieces, 2 texts empty (line 2, 4)" in result.output
    found = load(tmp_path / "o.npz")["vectors"]
    empty = reference_states(model, "")[-1].mean(axis=0)
    np.testing.assert_allclose(found[[1, 3]], [empty, empty], atol=2e-5)
    long = reference_states(model, " ".join(["w2"] * 38))[-1].mean(axis=0)
    np.testing.assert_allclose(found[2], long, atol=2e-5)
    tokens = extract(run, tmp_path, lines, "--level", "token")
    assert tokens["offsets"].tolist() == [0, 1, 1, 39, 39]


def test_text_lines_end_in_lf_or_crlf(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffw1 w2\r\n\nw3".encode())
    found = [(text.line, text.text) for text in read_texts(path, TextColumns())]
    assert found == [(1, "w1 w2"), (2, ""), (3, "w3")]
