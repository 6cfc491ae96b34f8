"""Storage whose client is not installed: opening it says so in a line."""

from __future__ import annotations

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


class S3(_Absent):
    """Amazon's."""

    protocol = "s3"


class Az(_Absent):
    """Microsoft's."""

    protocol = "az"


class Hf(_Absent):
    """Hugging Face's."""

    protocol = "hf"
