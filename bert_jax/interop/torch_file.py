"""One PyTorch file, read as weights; a pickle's code is never run."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.errors import UserError, first_line
from bert_jax.files.read import require_file, shown
from bert_jax.interop.mapping import TensorSpec
from bert_jax.interop.safetensors_file import DTYPES

WEIGHTS: Final = "pytorch_model.bin"
_DENSE: Final = "torch.strided"
_ALTERNATIVE: Final = "model.safetensors"


class TorchFile:
    """A file of `torch.save`, mapped into memory; satisfies `mapping.TensorSource`."""

    def __init__(self, path: Path) -> None:
        """Opens the file with PyTorch's loader of tensors alone (``weights_only``).

        Raises:
            UserError: PyTorch is not installed, the file is damaged, or holds anything but tensors.
        """
        try:
            import torch
        except ImportError as error:
            raise UserError(
                f"{path}: reading it needs PyTorch (pip install torch); a {_ALTERNATIVE} does not"
            ) from error
        require_file(path)
        self.path = str(path)
        self.files = [path]
        try:
            found = _load(torch, path)
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path}: holds Python objects beside tensors, and a pickle can run any code; "
                f"allowed: tensors alone, or a {_ALTERNATIVE}"
            ) from error
        except Exception as error:  # the reader of pickles fails in every way there is
            raise UserError(f"{path}: no whole PyTorch file ({first_line(error)})") from error
        if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
            raise UserError(f"{path}: found no dict of tensors")
        self._tensors = found
        self.specs = {str(name): _spec(path, name, tensor) for name, tensor in found.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor; half precision comes as float32, which loses nothing."""
        return self._tensors[name].detach().float().numpy()


def _spec(path: Path, name: object, tensor: Any) -> TensorSpec:
    """Returns a tensor's shape and type, if it is one of numbers in this file."""
    kind = str(tensor.dtype).split(".")[1]
    if not isinstance(name, str) or kind not in DTYPES.values() or str(tensor.layout) != _DENSE:
        raise UserError(
            f"{path}: tensor {shown(name)} found {kind} ({tensor.layout}), allowed: dense ones of "
            f"{', '.join(DTYPES.values())}"
        )
    # A view may repeat a few numbers over terabytes.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UserError(f"{path}: tensor {shown(name)} is larger than the numbers in the file")
    return TensorSpec(tuple(tensor.shape), np.dtype(kind))


def _load(torch: Any, path: Path) -> Any:
    with warnings.catch_warnings():
        # Of an unusual pickle protocol it warns before it refuses; one line is enough.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of PyTorch before 1.6 cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True)
