"""TensorFlow's checkpoint files: ``PREFIX.index``, ``PREFIX.data-*``.

TensorFlow writes them; it is imported when first needed and comes with the extra ``tf``.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.data.google_bert.tfrecord import masked_crc
from bert_jax.errors import UserError, did_you_mean, first_line, not_installed
from bert_jax.files.read import require_file
from bert_jax.interop.tf_index import read_index

INDEX: Final = ".index"


def tensorflow() -> Any:
    """Returns TensorFlow, without log lines and JAX's accelerators; UserError: not installed."""
    # Read at its first import. Errors still come as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        import tensorflow as tf
    except ImportError as error:
        purpose = "writing TensorFlow checkpoints"
        raise UserError(not_installed("tensorflow", purpose, extra="tf")) from error
    # Raises in a process that has used TensorFlow before: it has its devices already.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    return tf


def find_prefix(path: epath.PathLike) -> epath.Path:
    """Returns the prefix of a checkpoint's files: ``dir`` → ``dir/bert_model.ckpt``.

    The path is the prefix itself, or a directory that holds one checkpoint. Raises UserError: none
    there, or several.
    """
    given = epath.Path(path)
    if epath.Path(f"{given}{INDEX}").exists():
        return given
    if not given.is_dir():
        if not given.parent.is_dir():
            raise UserError(f"{given}: no such directory {given.parent}")
        found = _prefixes(given.parent)
        near = did_you_mean(given.name, found)
        raise UserError(
            f"{given}: no {given.name}{INDEX} there, allowed: the path of a checkpoint without "
            f".index or .data, or a directory that holds one{near}"
        )
    found = _prefixes(given)
    if len(found) != 1:
        what = f"checkpoints {', '.join(found)}" if found else f"no checkpoint (no *{INDEX})"
        raise UserError(f"{given}: found {what}, allowed: one, or the path of one of several")
    return given / found[0]


class TfBundle:
    """A TensorFlow checkpoint; satisfies `mapping.TensorSource`. TensorFlow is not needed."""

    def __init__(self, path: epath.PathLike) -> None:
        """Reads the index; UserError: no checkpoint, or the index is damaged."""
        prefix = find_prefix(path)
        self.path = str(prefix)
        index = epath.Path(f"{self.path}{INDEX}")
        shards, self._entries = read_index(index)
        names = [f"{self.path}.data-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
        self.files = [Path(name) for name in names if Path(name).exists()] + [Path(index)]
        self._shards = names
        self.specs = {name: entry.spec for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor; UserError: the data file is missing, cut off or damaged."""
        spec, shard, offset, size, checksum = self._entries[name]
        if spec.dtype.kind == "O":
            raise UserError(f"{self.path}: tensor {name} found text, allowed: numbers")
        file = self._shards[shard]
        try:
            require_file(file)
            with open(file, "rb") as opened:
                # Before memory is asked for: the size is the index's.
                if offset + size > os.fstat(opened.fileno()).st_size:
                    raise UserError(f"{file}: cut short")
                opened.seek(offset)
                raw = opened.read(size)
            if masked_crc(raw) != checksum:
                raise UserError(f"{file}: the checksum does not match")
        except (UserError, OSError) as error:
            raise UserError(
                f"{self.path}: tensor {name} cannot be read ({first_line(error)}); is a "
                f".data-* file missing, or was its download cut off?"
            ) from error
        return np.frombuffer(raw, spec.dtype).reshape(spec.shape)


def write_bundle(prefix: epath.Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes ``PREFIX.index`` and ``PREFIX.data-00000-of-00001``, which TensorFlow 1 reads.

    Only arrays that are not contiguous (transposed matrices) are copied. The prefix' directory
    exists; the files are written in place: the caller writes aside. Raises UserError: TensorFlow is
    not installed, the disk is full, or the place cannot be written to.
    """
    tf = tensorflow()
    shared = {name: np.asarray(array, order="C") for name, array in tensors}
    try:
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=list(shared),
                shape_and_slices=[""] * len(shared),
                tensors=[_as_tensor(tf, array) for array in shared.values()],
            )
    except _write_errors(tf) as error:
        raise UserError(f"{prefix}: cannot be written ({first_line(error)})") from error


def _as_tensor(tf: Any, array: np.ndarray) -> Any:
    """Returns a tensor over an array's own memory; the array must outlive it."""
    if array.ndim == 0:
        return tf.constant(array)
    if not array.flags.writeable:
        # JAX's arrays are read-only, which NumPy refuses to hand over as DLPack. Saving only reads.
        memory = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(memoryview(memory), array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _write_errors(tf: Any) -> tuple[type[Exception], ...]:
    """TensorFlow's C++ errors come as its own class or, by their code, as one of Python's."""
    return (tf.errors.OpError, IndexError, ValueError, RuntimeError, OSError)


def _prefixes(directory: epath.Path) -> list[str]:
    return sorted(file.name.removesuffix(INDEX) for file in directory.glob(f"*{INDEX}"))
