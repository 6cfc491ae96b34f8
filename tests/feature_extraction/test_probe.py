"""`--probe`: a linear classifier finds labels only if the features encode them."""

import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.feature_extraction.probe import learn_mix
from tests.feature_extraction.runs import features, make_run, write_lines
from tests.project import refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("features"), layers=4)[0]


def table(path: Path, *, shuffled: bool = False, count: int = 150) -> Path:
    """Writes texts. Words w0 to w3 have the label "low", w4 to w7 "high"."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 3 == 0
    words = [rng.integers(0, 4, 6) + 4 * int(high) for high in labels]
    said = rng.permutation(labels) if shuffled else labels
    rows = [
        f"{' '.join(f'w{word}' for word in text)}\t{'high' if high else 'low'}"
        for text, high in zip(words, said, strict=True)
    ]
    return write_lines(path, ["text\tlabel", *rows])


@pytest.mark.parametrize("shuffled", [False, True])
def test_probe_finds_separable_labels_but_not_shuffled_ones(
    run: Path, tmp_path: Path, shuffled: bool
) -> None:
    source = table(tmp_path / "t.tsv", shuffled=shuffled)
    result = features(run, source, tmp_path / "o.npz", "--probe", "label")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "5 folds, 150 texts, 2 labels; the most frequent label alone gets 66.7%" in result.output
    score = json.loads((tmp_path / "probe.json").read_text())
    if shuffled:
        assert score["accuracy"] < 0.75
        return
    assert min(score["accuracy"], score["macro_f1"]) > 0.95
    assert score["labels"] == ["high", "low"]
    assert np.mean(score["folds"]) == pytest.approx(score["accuracy"])


def test_mix_is_the_weighted_sum_of_layers(run: Path, tmp_path: Path) -> None:
    source = table(tmp_path / "t.tsv")
    made, scores = {}, {}
    for layers in ("mix", "0,1,2,3,4"):
        options = ("--probe", "label", "--layers", layers, "--force")
        assert features(run, source, tmp_path / "o.npz", *options).exit_code == 0
        with np.load(tmp_path / "o.npz") as archive:
            made[layers] = archive["vectors"]
        scores[layers] = json.loads((tmp_path / "probe.json").read_text())
    weights = scores["mix"]["mix"]
    assert scores["mix"]["accuracy"] > 0.95
    assert sum(weights) == pytest.approx(1)
    states = made["0,1,2,3,4"].reshape(150, 5, 32)
    np.testing.assert_allclose(made["mix"], np.einsum("nsd,s->nd", states, weights), atol=1e-5)


def test_mix_weights_the_informative_layer_most() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    states = rng.normal(size=(200, 4, 8)).astype(np.float32)
    states[:, 2, 0] += 4.0 * labels
    weights = learn_mix(states, labels, classes=2)
    assert weights.sum() == pytest.approx(1)
    assert weights.argmax() == 2
    assert weights[2] > 0.8


def test_labels_too_rare_for_the_folds_are_refused(run: Path, tmp_path: Path) -> None:
    options = ("--column", "a", "--probe", "b", "--layers", "last")
    source = write_lines(tmp_path / "t.csv", ["a,b", *["w1,x"] * 9, *["w2,y"] * 4])
    line = refused("features", run, source, tmp_path / "o.npz", *options)
    assert line.key == "probe.rare_label"
    assert line.values == {"place": "--probe", "label": "y", "found": 4, "folds": 5}
    write_lines(source, ["a,b", *["w1,x"] * 9])
    line = refused("features", run, source, tmp_path / "o.npz", *options)
    assert (line.key, line.values["found"]) == ("probe.labels", ["x"])
    other = table(tmp_path / "t.tsv")
    line = refused("features", run, other, tmp_path / "o.npz", "--probe", "labels")
    assert (line.key, line.values["hint"]) == ("table.column_unknown", '; did you mean "label"?')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.tsv"]
