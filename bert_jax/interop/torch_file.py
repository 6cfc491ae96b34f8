"""PyTorch's own files, read as weights and never run as the programs that pickles are."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bert_jax.errors import UserError, first_line
from bert_jax.interop.mapping import Spec
from bert_jax.interop.safetensors_file import refuse_pointer

WEIGHTS: Final = "pytorch_model.bin"


class TorchSource:
    """A ``pytorch_model.bin``, mapped into memory; satisfies `TensorSource`."""

    def __init__(self, path: Path, *, rename: Callable[[str], str]) -> None:
        """Opens the file with a loader that knows tensors and nothing else.

        Args:
            path: the file.
            rename: their spelling of a name → the one that the table has.

        Raises:
            UserError: PyTorch is not installed, the file is damaged, a git-lfs pointer, or holds
                anything but tensors.
        """
        self.path = str(path)
        self.files = [path]
        refuse_pointer(path)
        self._torch = torch = _torch(path)
        try:
            found = _load(torch, path)
        except pickle.UnpicklingError as error:
            raise UserError(
                f"{path}: holds Python objects beside tensors, and a pickle can run any code; "
                f"allowed: tensors alone, or a .safetensors file"
            ) from error
        except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
            raise UserError(f"{path}: no whole PyTorch file ({first_line(error)})") from error
        if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
            raise UserError(f"{path}: found no dict of tensors")
        self._found = {rename(name): tensor for name, tensor in found.items()}

    def specs(self) -> Mapping[str, Spec]:
        """Returns what is in the file."""
        return {
            name: Spec(tuple(tensor.shape), np.dtype(str(tensor.dtype).removeprefix("torch.")))
            for name, tensor in self._found.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor; half precision comes as float32, which loses nothing."""
        tensor = self._found[name].detach()
        return tensor.to(self._torch.float32).numpy()


def _torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path}: reading it needs PyTorch (pip install torch); a model.safetensors does not"
        ) from error
    return torch


def _load(torch: Any, path: Path) -> Any:
    with warnings.catch_warnings():
        # Of an unusual pickle protocol it warns before it refuses; one line is enough.
        warnings.simplefilter("ignore", UserWarning)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files of PyTorch before 1.6 cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True)
