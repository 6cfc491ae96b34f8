"""Reads prepared TFDS datasets: a document per record."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.errors import UserError, first_line, not_installed
from bert_jax.files.read import read_json_object
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import FilePart
from bert_jax.pipelines.sources.readers.records import PartReading, check_fields, named_fields

if TYPE_CHECKING:  # importing TFDS takes a third of a second in every worker
    import tensorflow_datasets as tfds

_INFO = "dataset_info.json"
_FEATURES = "features.json"
_TFDS = "tensorflow_datasets.core."


def is_dataset(path: str) -> bool:
    """Returns whether a directory is one version of a prepared TFDS dataset."""
    return (epath.Path(path).expanduser() / _INFO).exists()


def find_dataset(name: str) -> str:
    """Returns a dataset's directory: ``"ag_news_subset" -> "/data/ag_news_subset/1.0.0"``.

    The name is a directory, local or ``gs://``, or a dataset that is prepared in TFDS's own
    directory (``TFDS_DATA_DIR``). Nothing is downloaded. Raises UserError if there is no such
    dataset.
    """
    if is_dataset(name):
        return str(epath.Path(name).expanduser())
    import tensorflow_datasets as tfds

    try:
        directory = str(tfds.builder(name, try_gcs=False).data_dir)
    except Exception as error:  # TFDS's registry raises many kinds of errors
        raise UserError(
            "tfds.not_found", f"found no TFDS dataset {name} ({first_line(error)})", place="input"
        ) from error
    if not is_dataset(directory):
        raise UserError(
            "tfds.not_prepared",
            f"found no prepared dataset {name} in {directory}. Run `tfds build {name}`.",
            place="input",
        )
    return directory


def describe(path: str, section: SourcesSection) -> tuple[str, int, float]:
    """Returns a split's name for document ids, its size in bytes, and its modification time.

    ``("wikipedia/20230601.en/1.0.0/train", 21_000_000_000, 1_700_000_000.0)``. The time is in
    seconds since 1970.

    Raises UserError if there is no such split or feature, or the dataset is damaged.
    """
    builder = _builder(path)
    splits = builder.info.splits
    if section.tfds_split not in splits:
        raise UserError.unknown("tfds.no_split", section.tfds_split, splits, place=path)
    features: Any = builder.info.features
    check_fields(path, section, allowed=features, kind="feature")
    name = f"{builder.info.full_name}/{section.tfds_split}"
    made = float(epath.Path(path, _INFO).stat().mtime)
    return name, splits[section.tfds_split].num_bytes, made


def cut(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Cuts a split into ranges with equal numbers of records."""
    info = _builder(path).info.splits[section.tfds_split]
    count, size = info.num_examples, info.num_bytes
    pieces = max(1, min(count, -(-size // part_bytes)))
    cuts = [count * piece // pieces for piece in range(pieces + 1)]
    return [
        FilePart(path, name, start, stop, bytes=size // pieces)
        for start, stop in itertools.pairwise(cuts)
    ]


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a range of records.

    Raises UserError if the files are damaged, or if they need TensorFlow and it is not installed.
    """
    part = reading.part
    names = list(named_fields(reading.section).values())
    split = f"{reading.section.tfds_split}[{part.start}:{part.stop}]"
    return reading.numbered_documents(
        ({name: _plain(r[name]) for name in names} for r in _records(part.path, split, names)),
        first=part.start,
        place=lambda number: f"record {number} of {part.name}",
    )


def _records(path: str, split: str, names: list[str]) -> Iterator[Any]:
    import tensorflow_datasets as tfds

    builder: Any = _builder(path)  # TFDS's decorators hide two methods from pyright
    with _readable(path):
        if builder.info.file_format in tfds.core.FileFormat.with_random_access():
            yield from builder.as_data_source(split=split)
            return
        # Hides TensorFlow's log lines. Errors are still raised as exceptions.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
        try:
            import tensorflow as tf  # a separate extra; the import takes seconds
        except ImportError as error:
            files = f"{path}, a TFDS dataset of {builder.info.file_format.value} files"
            raise not_installed("tensorflow", files, extra="tf") from error
        tf.config.set_visible_devices([], "GPU")
        # Read one file at a time, so that records keep their order.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        dataset = builder.as_dataset(
            split=split,
            shuffle_files=False,
            read_config=config,
            decoders=tfds.decode.PartialDecoding(dict.fromkeys(names, True)),
        )
        yield from tfds.as_numpy(dataset)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # TFDS and TensorFlow raise many kinds of errors
        raise UserError(
            "tfds.unreadable", f"cannot be read as a TFDS dataset ({first_line(error)})", place=path
        ) from error


@functools.lru_cache(maxsize=4)
def _builder(path: str) -> tfds.core.DatasetBuilder:
    import tensorflow_datasets as tfds

    _only_features_of_tfds(epath.Path(path) / _FEATURES)
    with _readable(path):
        return tfds.builder_from_directory(path)


def _only_features_of_tfds(path: epath.Path) -> None:
    """Raises UserError for classes of other packages, which TFDS would import and call."""
    if not path.exists():
        return
    waiting: list[Any] = [read_json_object(path)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            name = str(node.get("pythonClassName", node.get("type", _TFDS)))
            if not name.startswith((_TFDS, "tensorflow_datasets.public_api.")) and "." in name:
                raise UserError.wrong(
                    "tfds.foreign_class", f"the class {name:.80}", "features of TFDS", place=path
                )
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return value.decode("utf-8") if isinstance(value, bytes) else value
