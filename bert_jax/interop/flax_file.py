"""Reads the weights that Hugging Face's Flax classes wrote until transformers 4."""

from pathlib import Path
from typing import Final

import numpy as np
from flax import serialization

from bert_jax.errors import UserError
from bert_jax.files.read import require_file, shown
from bert_jax.interop.tensor_conversion import TensorSpec, damaged, flatten

FLAX_WEIGHTS: Final = "flax_model.msgpack"

_KERNEL: Final = "kernel"
_WEIGHTS: Final = (_KERNEL, "embedding", "scale")  # Flax's names of a PyTorch module's `weight`


class FlaxFile:
    """A flax_model.msgpack under PyTorch's names: a `tensor_conversion.TensorSource`.

    Flax's modules have the names of PyTorch's modules. ``bert/pooler/dense/kernel`` is
    ``bert.pooler.dense.weight``, transposed.

    Source: `rename_key_and_reshape_tensor` in `modeling_flax_pytorch_utils.py` of Hugging Face
    transformers 4.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file into memory.

        Raises UserError if the file is damaged or contains objects other than arrays.
        """
        require_file(path)
        self.path = str(path)
        self.files = [path]
        try:
            found = serialization.msgpack_restore(path.read_bytes())
            arrays = flatten(found if isinstance(found, dict) else {"": None})
        except Exception as error:  # a damaged file can raise any exception
            raise damaged("weights.flax_damaged", path, "a file of Flax", error) from error
        self._arrays: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise UserError("weights.no_arrays", f"found no array at {shown(name)}", place=path)
            theirs, tensor = _renamed(name, array)
            self._arrays[theirs] = tensor
        self.specs = {
            name: TensorSpec(array.shape, array.dtype) for name, array in self._arrays.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        return self._arrays[name]


def _renamed(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns a tensor's name and content in PyTorch."""
    *modules, last = name.split("/")
    weight = "weight" if last in _WEIGHTS else last
    return ".".join([*modules, weight]), array.T if last == _KERNEL else array
