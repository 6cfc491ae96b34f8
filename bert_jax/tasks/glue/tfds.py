"""Reads GLUE tasks from TensorFlow Datasets, without TensorFlow."""

import contextlib
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import UserError, first_line, not_installed
from bert_jax.tasks.glue.files import GlueRows
from bert_jax.tasks.labels import TextRow

NAME: Final = "tfds"  # value of `task.data` instead of a directory
_SECONDS: Final = 5  # limit for the answer of a host
_SPLITS: Final = {"train": "train", "dev": "validation", "test": "test"}
# Possible names of the text fields in TFDS: (text, second text).
_TEXTS: Final = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("premise", "hypothesis"),
    ("question", "sentence"),
    ("sentence",),
)


def read_tfds(task: str, role: str, data_dir: str | None) -> dict[str, GlueRows]:
    """Returns the splits of a role, {split: examples}. Examples are sorted by GLUE's `idx`.

    If the dataset is missing, TFDS downloads and prepares it. If `data_dir` is None, TFDS uses its
    default directory. Raises UserError if preparation fails, or if the format needs TensorFlow.
    """
    split = _SPLITS[role]
    if task != "mnli" or role == "train":
        return {role: _read(f"glue/{task}", split, data_dir)}
    found = {
        f"{role}_{kind}": _read("glue/mnli", f"{split}_{kind}", data_dir)
        for kind in ("matched", "mismatched")
    }
    if role == "test":
        found["diagnostic"] = _read("glue/ax", split, data_dir)
    return found


def _read(name: str, split: str, data_dir: str | None) -> GlueRows:
    builder = _builder(name, data_dir)
    if split not in builder.info.splits:
        raise UserError.unknown("glue.tfds_split", split, builder.info.splits, place=f"tfds {name}")
    try:
        source = builder.as_data_source(split=split)
    except NotImplementedError:
        raise UserError(
            "glue.tfds_format",
            f"found {builder.info.file_format.value} in {builder.data_path}, allowed: "
            "array_record. Set another finetune.task.data_dir.",
            place=f"tfds {name}",
        ) from None
    feature = builder.info.features["label"]
    names = getattr(feature, "names", None)  # only classes have names
    place = f"tfds {name} {split}"
    rows = [_row(dict(example), names, place) for example in source]
    return GlueRows(sorted(rows, key=lambda row: row.id))


def _builder(name: str, data_dir: str | None) -> Any:
    try:
        import tensorflow_datasets as tfds  # slow, and few runs need TFDS
    except ImportError as error:
        purpose = f"finetune.task.data: {NAME}"
        raise not_installed("tensorflow-datasets", purpose, extra="data") from error

    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if not builder.is_prepared():
            _require_network(builder)
            builder.download_and_prepare(file_format="array_record")
    # TFDS raises many types of errors for network and checksum failures.
    except Exception as error:
        directory = data_dir or "its default directory"
        raise UserError(
            "glue.tfds_unavailable",
            f"not prepared in {directory} ({type(error).__name__}: {first_line(error)}). Set "
            "finetune.task.data to a directory with the original files.",
            place=f"tfds {name}",
        ) from error
    return builder


def _require_network(builder: Any) -> None:
    """Raises ConnectionError if no host of a dataset's files answers.

    Without a network, TFDS would retry its downloads for minutes.
    """
    import requests  # TFDS requires it

    hosts = sorted({f"{urllib.parse.urlsplit(url).hostname}" for url in builder.url_infos})
    for host in hosts:
        with contextlib.suppress(requests.RequestException):
            requests.head(f"https://{host}", timeout=_SECONDS)
            return
    raise ConnectionError(f"no answer from {', '.join(hosts)}")


def _row(example: Mapping[str, Any], names: list[str] | None, place: str) -> TextRow:
    number = int(example["idx"])
    keys = next(keys for keys in _TEXTS if keys[0] in example)
    found = [example[key] for key in keys]
    text, *pair = (each.decode() if isinstance(each, bytes) else each for each in found)
    label: Any = example["label"]  # -1 if unknown
    if names is not None:
        label = None if int(label) < 0 else names[int(label)]
    else:
        label = None if math.isclose(float(label), -1) else float(label)
    return TextRow(
        f"{place}: index {number}", number + 1, number, text, pair[0] if pair else None, label
    )
