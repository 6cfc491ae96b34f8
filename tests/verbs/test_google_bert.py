"""Pretraining on google-research/bert's TFRecords."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from rich.console import Console

from bert_jax.config import parse_config
from bert_jax.data.google_bert import tf_example
from bert_jax.data.google_bert.reader import open_google_bert
from bert_jax.data.google_bert.tfrecord import frame, scan_records
from bert_jax.verbs.evaluate import evaluate
from bert_jax.verbs.examples import ExtraOutputs, examples
from bert_jax.verbs.pretrain import pretrain
from tests.project import MESH, project_config, refuses

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def ours(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TFRecords of the project's dataset of 32 tokens."""
    path = tmp_path_factory.mktemp("released") / "ours"
    config = parse_config(project_config(project), source="test")
    examples(config, extra=ExtraOutputs(tfrecords=str(path)), console=QUIET)
    return path


def values(project: Path, root: Path, dataset: object) -> dict[str, Any]:
    made = project_config(project)
    made["mesh"] = MESH
    made["run_dir"] = str(root / "run")
    made["train"]["phases"] = [made["train"]["phases"][0] | {"dataset": str(dataset)}]
    return made


@pytest.mark.slow
def test_a_run_learns_from_tfrecords(project: Path, ours: Path, tmp_path: Path) -> None:
    from tests.data.google_bert_writer import read_release, write_release

    records = tmp_path / "theirs"  # rewritten by TensorFlow
    records.mkdir()
    for path in sorted(ours.glob("*tfrecord*")):
        write_release(records / path.name, read_release([path], length=32, slots=5))
    config = parse_config(values(project, tmp_path, records), source="test")
    outcome = pretrain(config, console=QUIET)
    assert outcome.step == 10
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert pretrain(config, console=QUIET).step == 10
    evaluated = evaluate(str(tmp_path / "run"), console=QUIET)
    assert evaluated.examples == len(open_google_bert(records, "validation"))
    assert evaluated.scores == evaluate(str(tmp_path / "run"), console=QUIET).scores


def test_unsuitable_files_are_refused(project: Path, ours: Path, tmp_path: Path) -> None:
    def start(*overrides: str, dataset: object = ours) -> None:
        config = parse_config(values(project, tmp_path, dataset), overrides, source="test")
        pretrain(config, console=QUIET)

    with refuses("objective.tfrecords", place="train.phases.0.dataset"):
        start("objective.kind=roberta")
    with refuses("phase.max_predictions", place="train.phases.0.max_predictions", found=1):
        start("train.phases.0.max_predictions=1")
    with refuses("dataset.stored_masks_packed", place="train.phases.0.packing", found=4):
        start("train.phases.0.packing.max_examples=4")
    with refuses("dataset.example_too_long", place="train.phases.0.seq_length", found=16):
        start("train.phases.0.seq_length=16")
    other, train = tmp_path / "other.tfrecord", ours / "train.tfrecord-00000-of-00001"
    first = next(scan_records(epath.Path(train))).payload
    for at, wrong, key in ((0, 7, "tfrecord.special_ids"), (1, 9999, "tfrecord.token_id")):
        example = tf_example.Example.FromString(first)
        example.features.feature["input_ids"].int64_list.value[at] = wrong
        other.write_bytes(frame(example.SerializeToString()))
        with refuses(key, place="train.phases.0.dataset"):
            start(dataset=other)
    other.write_bytes(train.read_bytes()[:-3])
    with refuses("tfrecord.cut_short"):
        start(dataset=other)
    assert not (tmp_path / "run").exists()
