"""One object in Google Cloud Storage, replaced only if its generation is the expected one."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from bert_jax.errors import UserError


class ObjectVersion(NamedTuple):
    """One version of an object."""

    generation: int
    """A new one with each write."""
    raw: bytes


class CloudObject:
    """An object, by name."""

    def __init__(self, path: str) -> None:
        """Opens no connection; ``path`` is ``gs://bucket/name``."""
        self._bucket, _, self._name = path.partition("://")[2].partition("/")

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        """Writes the object.

        Args:
            raw: its content.
            replaces: the generation that it must have now; 0: it must not exist.

        Returns:
            The new generation; ``None``: it has another one, and nothing was written.
        """
        blob = self._blob()
        try:
            blob.upload_from_string(raw, if_generation_match=replaces)
        except _exceptions().PreconditionFailed:
            return None
        return blob.generation

    def read(self) -> ObjectVersion | None:
        """Returns the current version; ``None``: the object does not exist."""
        blob = self._blob()
        try:
            raw = blob.download_as_bytes()
        except _exceptions().NotFound:
            return None
        return ObjectVersion(blob.generation, raw)

    def delete(self, *, generation: int) -> None:
        """Deletes the object unless it has another generation or does not exist."""
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
