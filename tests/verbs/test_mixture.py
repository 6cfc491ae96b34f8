"""A phase that mixes datasets: settings, messages, resuming."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config import parse_config
from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.files.seal import sealed, unsealed
from bert_jax.launch.host_paths import for_hosts
from bert_jax.runs.run_directory import read_run_provenance
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.workflows.phase_data import PhaseData
from bert_jax.workflows.pretraining_settings import PhaseSection
from tests.data.google_bert_writer import random_rows, write_release
from tests.project import ok, one_phase, refused, refuses, says, write_config
from tests.verbs.test_bad_input import copy_dataset
from tests.verbs.test_data_position import cut_back

pytestmark = pytest.mark.slow

ROWS = 12 * 8


@pytest.fixture
def values(project: Path) -> dict[str, Any]:
    """Two datasets of one tokenizer, with changing weights."""
    values = one_phase(project, steps=12, evaluation=None)
    first, second = (str(project / name) for name in ("dataset32", "dataset48"))
    values["train"]["phases"][0] |= {
        "dataset": {first: 0.75, second: 0.25},
        "mixing": {"until": {first: 0.25, second: 0.75}},
        "seq_length": 48,
    }
    return values


def epochs_of(output: str, project: Path, name: str) -> float:
    """Returns the planned epochs of a dataset, from the first lines of a run."""
    found = re.search(rf"phase 0, {project / name}: ([\d.]+) epochs of ([\d,]+) rows", output)
    assert found is not None, output
    return float(found[1]) * int(found[2].replace(",", ""))


def test_a_run_says_the_epochs_and_resumes_bit_for_bit(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    config, whole = write_config(tmp_path / "run.yaml", values), tmp_path / "whole"
    checked = ok("doctor", config)
    output = ok("pretrain", config, f"run_dir={whole}")
    for name in ("dataset32", "dataset48"):
        assert epochs_of(output, project, name) == pytest.approx(ROWS / 2, rel=0.02)
        assert epochs_of(checked, project, name) == pytest.approx(ROWS / 2, rel=0.02)
        assert re.search(rf"phase 0 has read .*epochs of {project / name} \(48 rows\)", output)
    assert {str(project / name) for name in ("dataset32", "dataset48")} == (
        read_run_provenance(whole)["datasets"].keys()
    )
    # The sequence of the directories does not matter.
    cut = cut_back(whole, tmp_path / "cut", step=4)
    weights = dict(reversed(values["train"]["phases"][0]["dataset"].items()))
    swapped = f"train.phases.0.dataset={json.dumps(weights)}"
    ok("pretrain", config, f"run_dir={cut}", "loader.workers=2", swapped)
    losses = [
        [(line["step"], line["loss"]) for line in read_metrics(run, kind="train")]
        for run in (whole, cut)
    ]
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


def test_other_weights_need_a_flag(values: dict[str, Any], project: Path, tmp_path: Path) -> None:
    del values["train"]["phases"][0]["mixing"]
    config, run_dir = write_config(tmp_path / "run.yaml", values), tmp_path / "run"
    ok("pretrain", config, f"run_dir={run_dir}", "train.phases.0.steps=4")
    weights = {str(project / "dataset32"): 0.5, str(project / "dataset48"): 0.5}
    other = (config, f"run_dir={run_dir}", f"train.phases.0.dataset={json.dumps(weights)}")
    line = refused("pretrain", *other)
    says(line, key="resume.data_changed", place="weights", weights=[0.5, 0.75])
    assert "--allow-data-change" in line
    output = ok("pretrain", *other, "--allow-data-change")
    assert "weights was" in output
    # The position starts again, and the last 8 steps read 64 rows.
    assert len(re.findall(r"\(32 rows\)", output)) == 2
    line = refused("evaluate", run_dir)
    says(line, key="evaluate.no_dataset", place="--dataset")
    ok("evaluate", run_dir, "--dataset", project / "dataset48")


def test_directories_with_smoothing_share_rows_by_their_tokens(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    directories = [str(project / name) for name in ("dataset32", "dataset48")]
    values["train"]["phases"][0] |= {"dataset": directories, "mixing": {"smoothing": 0}}
    values["train"]["phases"][0]["packing"] = {"max_examples": 3}
    values["train"]["evaluation"] = {"every": 12, "dataset": directories[0], "examples": 24}
    config = write_config(tmp_path / "run.yaml", values)
    output = ok("pretrain", config, f"run_dir={tmp_path / 'run'}")
    assert len(re.findall(r"\(48 rows\)", output)) == 2
    assert "packed rows" in output
    assert read_metrics(tmp_path / "run", kind="validation")


CASES: list[tuple[dict[str, Any], str, str, dict[str, Any]]] = [
    ({"dataset": {"a": 0.5, "b": 0.4}}, "mixing.sum", "dataset", {"found": 0.9}),
    ({"dataset": {"a": 1.5, "b": -0.5}}, "mixing.weight", "dataset.a", {"found": 1.5}),
    ({"dataset": {"a": "much"}}, "mixing.weight", "dataset.a", {"found": "much"}),
    ({"dataset": {"a": 1, "b": 0}}, "mixing.never", "dataset.b", {}),
    ({"dataset": {}}, "mixing.empty", "dataset", {}),
    ({"dataset": []}, "mixing.empty", "dataset", {}),
    ({"dataset": 5}, "setting.value", "dataset", {"found": 5}),
    ({"dataset": ["a", 5]}, "setting.value", "dataset", {"found": 5}),
    ({"dataset": {"a": 0.5, "./a": 0.5}}, "mixing.twice", "dataset", {"found": "./a"}),
    (
        {"dataset": ["a", "a/"], "mixing": {"smoothing": 0.3}},
        *("mixing.twice", "dataset", {"found": "a/"}),
    ),
    ({"dataset": {"": 1.0}}, "path.empty", "dataset", {}),
    ({"dataset": ["a", "b"]}, "mixing.smoothing", "mixing.smoothing", {"found": "nothing"}),
    (
        {"dataset": "a", "mixing": {"smoothing": 0.3}},
        *("mixing.smoothing", "mixing.smoothing", {"found": 0.3}),
    ),
    (
        {"dataset": {"a": 0.5, "b": 0.5}, "mixing": {"until": {"a": 1.0}}},
        *("mixing.until", "mixing.until", {"found": "a", "allowed": "a, b"}),
    ),
    (
        {"dataset": {"a": 0.5, "b": 0.5}, "mixing": {"until": {"a": 0.5, "b": 0.6}}},
        *("mixing.sum", "mixing.until", {"found": 1.1}),
    ),
    ({"dataset": "a", "mixing": {"until": {"a": 1.0}}}, "mixing.until", "mixing.until", {}),
]


@pytest.mark.parametrize(
    ("phase", "key", "place", "found"), CASES, ids=[json.dumps(case[0]) for case in CASES]
)
def test_a_wrong_mixture_is_refused_by_its_setting(
    phase: dict[str, Any], key: str, place: str, found: dict[str, Any]
) -> None:
    values = {"run_dir": "run", "train": {"phases": [{"steps": 1} | phase], "evaluation": None}}
    with refuses(key, place=f"run.yaml: train.phases.0.{place}", **found):
        parse_config(values, source="run.yaml")


def test_datasets_that_do_not_fit_are_named(
    values: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "run.yaml", values)
    line = refused("pretrain", config, "train.evaluation={every: 4}")
    says(line, key="evaluation.mixture", missing="train.evaluation: null")
    assert line.place.endswith("train.evaluation.dataset")
    phase, first = values["train"]["phases"][0], str(project / "dataset32")
    del phase["mixing"]
    copy = tmp_path / "copy"
    copy.symlink_to(first)
    phase["dataset"] = {first: 0.5, str(copy): 0.5}
    config = write_config(tmp_path / "run.yaml", values)
    says(refused("pretrain", config, f"run_dir={tmp_path / 'run'}"), key="mixing.same_examples")
    phase["dataset"] = {first: 0.5, "missing": 0.5}
    config = write_config(tmp_path / "run.yaml", values)
    says(refused("pretrain", config), found="missing")
    other = copy_dataset(project, tmp_path)
    provenance = unsealed(json.loads((other / "provenance.json").read_text()))
    text = json.dumps(sealed(provenance | {"tokenizer_hash": "0" * 64}))
    (other / "provenance.json").write_text(text)
    phase["dataset"] = {first: 0.5, str(other): 0.5}
    line = refused("pretrain", write_config(tmp_path / "run.yaml", values))
    says(line, key="dataset.other_tokenizer", found=str(other))


def test_tfrecords_are_not_mixed(tmp_path: Path) -> None:
    path = str(write_release(tmp_path / "a.tfrecord", random_rows(4)))
    section = PhaseSection(dataset={path: 1.0}, steps=1)
    with refuses("mixing.tfrecords", place=f"train.phases.0.dataset.{path}"):
        PhaseData.of(0, section, {path: open_google_bert(path)})


def test_hosts_read_every_dataset_of_a_mixture_from_the_bucket() -> None:
    weights = {"data/a": 0.8, "gs://other/b": 0.2}
    phases = [
        {"dataset": weights, "mixing": {"until": weights}},
        {"dataset": ["data/a", "data/c"], "mixing": {"smoothing": 0.3, "until": None}},
    ]
    found = for_hosts({"train": {"phases": phases}}, "gs://b")["train"]["phases"]
    moved = {"gs://b/data/a": 0.8, "gs://other/b": 0.2}
    assert found[0] == {"dataset": moved, "mixing": {"until": moved}}
    assert found[1]["dataset"] == ["gs://b/data/a", "gs://b/data/c"]
    phases[1]["dataset"] = ["/data/a", "data/c"]
    with refuses("submit.local_path", place="train.phases.1.dataset", found="/data/a"):
        for_hosts({"train": {"phases": phases}}, "gs://b")
