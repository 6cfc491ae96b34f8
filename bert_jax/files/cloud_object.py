"""One object in Google Cloud Storage, replaced only by who knows what it replaces."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from bert_jax.errors import UserError


class Content(NamedTuple):
    """What an object is at some time."""

    generation: int
    """Each write gives it another."""
    raw: bytes


class CloudObject:
    """An object, by name."""

    def __init__(self, path: str) -> None:
        """Opens no connection.

        Args:
            path: ``gs://bucket/name``.
        """
        self._bucket, _, self._name = path.partition("://")[2].partition("/")

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        """Writes the object.

        Args:
            raw: its content.
            replaces: the generation that it must have now; 0: it must not be there.

        Returns:
            The new generation; ``None``: it is another one now, and nothing was written.
        """
        blob = self._blob()
        try:
            blob.upload_from_string(raw, if_generation_match=replaces)
        except _exceptions().PreconditionFailed:
            return None
        return blob.generation

    def read(self) -> Content | None:
        """Returns what it is now; ``None``: it is not there."""
        blob = self._blob()
        try:
            raw = blob.download_as_bytes()
        except _exceptions().NotFound:
            return None
        return Content(blob.generation, raw)

    def delete(self, *, generation: int) -> None:
        """Deletes the object, unless it is another generation, or not there."""
        try:
            self._blob().delete(if_generation_match=generation)
        except (_exceptions().NotFound, _exceptions().PreconditionFailed):
            pass

    def _blob(self) -> Any:
        try:
            storage = importlib.import_module("google.cloud.storage")
        except ImportError as error:
            raise UserError(
                "output: gs:// needs Google's client, which is not installed; "
                'pip install "bert-jax[gcp]"'
            ) from error
        return storage.Client().bucket(self._bucket).blob(self._name)


def _exceptions() -> Any:
    return importlib.import_module("google.api_core.exceptions")
