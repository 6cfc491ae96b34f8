"""Storage whose client is not installed: opening it says so in a line."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import fsspec

from bert_jax.errors import UserError

CLIENTS: Final = {"s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
"""The package of each protocol; Google's is `bert_jax.files.bucket`'s own."""


class _Absent(fsspec.AbstractFileSystem):
    """Raises a `UserError` when it is opened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        name = str(self.protocol)
        client = CLIENTS[name]
        extra = '"bert-jax[hub]"' if name == "hf" else client
        raise UserError(f"{name}:// needs {client}, which is not installed: pip install {extra}")


def say_when_opened() -> None:
    """Registers them with fsspec; where a client is installed its own stays."""
    for name, client in CLIENTS.items():
        if importlib.util.find_spec(client) is None:
            absent = type(f"Absent{name.capitalize()}", (_Absent,), {"protocol": name})
            fsspec.register_implementation(name, absent, clobber=True)
