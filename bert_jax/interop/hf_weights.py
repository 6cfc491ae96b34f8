"""Reads the weights of a Hugging Face checkpoint, from one file or from shards."""

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.encoders.hf_format import HfFormat
from bert_jax.errors import UserError, commas, one_of
from bert_jax.files.read import read_json_object, require_file, shown
from bert_jax.interop.flax_file import FLAX_WEIGHTS, FlaxFile
from bert_jax.interop.safetensors_file import DTYPES, WEIGHTS, SafetensorsFile
from bert_jax.interop.tensor_conversion import TensorSource, TensorSpec, damaged, tensor_error

TORCH_WEIGHTS: Final = "pytorch_model.bin"
_DENSE: Final = "torch.strided"

_INDEX: Final = ".index.json"
_LFS_POINTER: Final = b"version https://git-lfs"


class TorchFile:
    """A file written by `torch.save`, mapped into memory: a `tensor_conversion.TensorSource`."""

    def __init__(self, path: Path) -> None:
        """Opens the file with PyTorch's ``weights_only`` loader.

        Raises UserError if PyTorch is not installed, or the file is damaged or contains objects
        other than tensors.
        """
        try:
            import torch
        except ImportError as error:
            raise UserError(
                "weights.needs_pytorch", "needs PyTorch. Run pip install torch.", place=path
            ) from error
        require_file(path)
        self.path = str(path)
        self.files = [path]
        try:
            found = _load(torch, path)
        except pickle.UnpicklingError as error:
            raise UserError(
                "weights.pickled_objects",
                "found Python objects, which can run any code. Use a model.safetensors.",
                place=path,
            ) from error
        except Exception as error:  # a damaged pickle can raise any exception
            raise damaged("weights.pytorch_damaged", path, "a PyTorch file", error) from error
        if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
            raise UserError("weights.no_tensors", "found no dict of tensors", place=path)
        self._tensors = found
        self.specs = {str(name): _spec(path, name, tensor) for name, tensor in found.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor as float32, which represents half precision exactly."""
        return self._tensors[name].detach().float().numpy()


def _spec(path: Path, name: object, tensor: Any) -> TensorSpec:
    """Returns a tensor's shape and type.

    Raises UserError if the tensor is sparse, of an unknown type, without data, or larger than its
    stored data.
    """
    kind = str(tensor.dtype).split(".")[1]
    if not isinstance(name, str) or kind not in DTYPES.values() or str(tensor.layout) != _DENSE:
        allowed = f"dense tensors of {one_of(DTYPES.values())}"
        what = f"is {kind} ({tensor.layout}), allowed: {allowed}"
        raise tensor_error("tensor.layout", path, shown(name), what)
    if tensor.is_meta:
        what = "has no data (device meta). Save the model with its weights."
        raise tensor_error("tensor.no_data", path, shown(name), what)
    # An expanded view of a few stored numbers could need terabytes when it is read.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        what = "is larger than its data in the file"
        raise tensor_error("tensor.larger_than_file", path, shown(name), what)
    return TensorSpec(tuple(tensor.shape), np.dtype(kind))


def _load(torch: Any, path: Path) -> Any:
    with warnings.catch_warnings():
        # Hide PyTorch's warning about an unusual pickle protocol, because an error follows.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of PyTorch before 1.6 cannot be mapped into memory.
            return torch.load(path, map_location="cpu", weights_only=True)


# Readers by file name, in order of preference. A checkpoint may have an index and shards instead.
_READERS: Final[dict[str, Callable[[Path], TensorSource]]] = {
    WEIGHTS: SafetensorsFile,
    TORCH_WEIGHTS: TorchFile,
    FLAX_WEIGHTS: FlaxFile,
}


class HfWeights:
    """All tensors of a checkpoint. Implements `tensor_conversion.TensorSource`.

    Attributes:
        prefix: start of the encoder's tensor names: the format's prefix, or empty for a class
            without heads.
    """

    def __init__(self, directory: Path, format: HfFormat, *, file: str | None = None) -> None:
        """Opens the files. Resolves old tensor names and the second names of tied tensors.

        `file` is a file of PyTorch with another name than usual. Raises UserError if there are no
        weights, a file is damaged, the index names a file outside the directory, or the decoder
        differs from the embeddings.
        """
        path, reader = _find(directory) if file is None else (directory / file, TorchFile)
        shards = _shards(path) if path.name.endswith(_INDEX) else [path]
        self.path = str(path)
        self.files = list(dict.fromkeys([path, *shards]))
        self._found: dict[str, tuple[TensorSource, str]] = {}
        for shard in shards:
            _refuse_pointer(shard)
            source = reader(shard)
            for name in source.specs:
                _, other = self._found.setdefault(_current_name(name, format), (source, name))
                if other != name:
                    what = f"is the same tensor as {name}. Remove one of them."
                    raise tensor_error("tensor.two_names", shard, other, what)
        with_heads = any(name.startswith(format.prefix) for name in self._found)
        self.prefix = format.prefix if with_heads else ""
        self._resolve_tied(format)
        self.specs: dict[str, TensorSpec] = {
            name: source.specs[theirs] for name, (source, theirs) in self._found.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        source, theirs = self._found[name]
        return source.read(theirs)

    def _resolve_tied(self, format: HfFormat) -> None:
        names = {rule.ours: rule.theirs for rule in format.names(self.prefix, None)}
        for second, ours in format.tied.items():
            first = names[ours]
            if second not in self._found:
                continue
            if first not in self._found:
                self._found[first] = self._found.pop(second)
            elif not np.array_equal(self.read(second), self.read(first)):
                what = f"differs from {first}, but our model has one tensor for both"
                raise tensor_error("tensor.not_tied", self.path, second, what)


def _current_name(name: str, format: HfFormat) -> str:
    """Returns a tensor's current name. Early Hugging Face files use gamma and beta."""
    for start, current in format.renamed.items():
        if name.startswith(start):
            return current + name.removeprefix(start)
    stem, _, last = name.rpartition(".")
    if not stem.endswith("LayerNorm"):
        return name
    last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    return f"{stem}.{last}"


def _find(directory: Path) -> tuple[Path, Callable[[Path], TensorSource]]:
    for name, reader in _READERS.items():
        for path in (directory / name, directory / (name + _INDEX)):
            if path.exists():
                return path, reader
    allowed = commas([each for name in _READERS for each in (name, name + _INDEX)])
    raise UserError.wrong("weights.missing", "no weights", allowed, place=directory)


def _shards(index: Path) -> list[Path]:
    weight_map = read_json_object(epath.Path(index)).get("weight_map")
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError("weights.no_weight_map", "found no map of tensors to files", place=index)
    beside = {path.name for path in index.parent.iterdir() if path.is_file()}
    for name in names:
        if name not in beside:
            raise UserError(
                "weights.shard_missing", f"found no {shown(name)} beside it", place=index
            )
    return [index.parent / name for name in sorted(set(names))]


def _refuse_pointer(file: Path) -> None:
    """Raises UserError for the pointer file that git checks out without git-lfs."""
    require_file(file)
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise UserError(
                "weights.lfs_pointer", "a git-lfs pointer. Run `git lfs pull`.", place=file
            )
