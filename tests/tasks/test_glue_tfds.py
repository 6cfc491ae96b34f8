"""GLUE datasets of TensorFlow Datasets are read without TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from bert_jax.tasks.family import Family
from bert_jax.tasks.glue.family import GlueSection
from bert_jax.tasks.glue.files import TASKS
from tests.project import refuses
from tests.tasks.sequences import labels_of, opening, predict

VERSION = "2.0.0"
Examples = Sequence[Mapping[str, Any]]


def prepare(data_dir: Path, name: str, splits: Mapping[str, Examples]) -> Path:
    """Writes a dataset in the directory and format of TFDS."""
    builder = tfds.builder(f"glue/{name}", data_dir=data_dir, file_format="array_record")
    directory = Path(builder.data_path)
    directory.mkdir(parents=True)
    writer = tfds.core.SequentialWriter(builder.info, 100, file_format="array_record")
    writer.initialize_splits([*splits])
    for split, examples in splits.items():
        writer.add_examples({split: [*examples]})
    writer.close_all()
    return directory


def glue(data_dir: Path, name: str, *roles: str) -> Family:
    section = GlueSection.model_validate({"name": name, "data": "tfds", "data_dir": str(data_dir)})
    return section.open(opening(data_dir, *roles))


@pytest.mark.parametrize("name", [name for name in TASKS if name != "mnli"])
def test_texts_and_labels_equal_the_datasets(tmp_path: Path, name: str) -> None:
    texts = {
        "cola": ("sentence",),
        "sst2": ("sentence",),
        "qqp": ("question1", "question2"),
        "qnli": ("question", "sentence"),
    }.get(name, ("sentence1", "sentence2"))
    names = TASKS[name].names
    labels: list[Any] = [2.5, 0.25] if name == "stsb" else [names[1], names[0]]
    # TFDS shuffles examples: `idx` is the original position.
    both = [
        {**{text: f"w{n} w{m}" for m, text in enumerate(texts)}, "label": labels[n], "idx": n}
        for n in (1, 0)
    ]
    hidden = [{**example, "label": -1} for example in both]
    prepare(tmp_path, name, {"train": both, "validation": both[:1], "test": hidden})
    family = glue(tmp_path, name, "train", "dev", "test")
    assert {key: split.examples for key, split in family.splits.items()} == {
        "train": 2,
        "dev": 1,
        "test": 2,
    }
    records = predict(family.splits["train"], np.zeros((2, len(names))).tolist())
    assert [record["label"] for record in records] == labels
    assert [record["id"] for record in records] == [0, 1]
    assert [record["text"] for record in records] == ["w0 w0", "w1 w0"]
    assert records[1].get("pair", "w1 w1") == "w1 w1"
    assert ("pair" in records[0]) == (len(texts) == 2)
    assert labels_of(family.splits["test"]) == [None, None]


def test_a_format_that_needs_tensorflow_is_refused(tmp_path: Path) -> None:
    one = [{"sentence": "w1", "label": "positive", "idx": 0}]
    path = prepare(tmp_path, "sst2", {"train": one}) / "dataset_info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fileFormat": "tfrecord"}))
    with refuses("glue.tfds_format", place="tfds glue/sst2", found="tfrecord"):
        glue(tmp_path, "sst2", "train")


def test_a_failed_download_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, **options: object) -> None:
        assert options == {"file_format": "array_record"}
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    monkeypatch.setattr("requests.head", lambda url, timeout: None)
    reason = "ConnectionError: no route to host"
    with refuses("glue.tfds_unavailable", directory=f"{tmp_path}/data", reason=reason):
        glue(tmp_path / "data", "rte", "train")


def test_no_network_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", pytest.fail)
    with refuses("glue.tfds_unavailable", place="tfds glue/mrpc") as caught:
        glue(tmp_path, "mrpc", "train")
    assert "no answer from bit.ly, dl.fbaipublicfiles.com" in str(caught.value)
