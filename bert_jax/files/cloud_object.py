"""One object in Google Cloud Storage, replaced only if its generation is the expected one."""

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from bert_jax.errors import NoCredentials, UserError
from bert_jax.files.patience import (
    FIRST_PAUSE_SECONDS,
    LOGIN,
    NOT_INSTALLED,
    OUTAGE,
    BucketPatience,
    reason_of,
)

_LONGEST_PAUSE_SECONDS: Final = 4.0


class ObjectVersion(NamedTuple):
    """One version of an object."""

    generation: int  # a new one with each write
    raw: bytes


class CloudObject:
    """An object, by name. A request that fails is tried again, see `bert_jax.files.patience`.

    Any method raises UserError without client, credentials, bucket or permission, and RunStopped
    when the outage is given up.
    """

    def __init__(self, path: str) -> None:
        """Opens no connection; ``path`` is ``gs://bucket/name``."""
        self._path = path
        self._bucket, _, self._name = path.partition("://")[2].partition("/")

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        """Writes the object.

        The content is unlike that of any other writer. `replaces` is the generation that the object
        must have now; 0: it must not exist. Returns the new one; ``None``: the object has another
        one, and nothing was written.
        """
        with self._opened() as blob:
            try:
                blob.upload_from_string(raw, if_generation_match=replaces, **self._patience())
            except _exceptions().PreconditionFailed:
                # By us, if the answer to an earlier try was lost.
                now = self.read()
                return now.generation if now is not None and now.raw == raw else None
            return blob.generation

    def read(self) -> ObjectVersion | None:
        """Returns the current version; ``None``: the object does not exist."""
        with self._opened() as blob:
            try:
                raw = blob.download_as_bytes(**self._patience())
            except _exceptions().NotFound:
                return None
            return ObjectVersion(blob.generation, raw)

    def delete(self, *, generation: int) -> None:
        """Deletes the object unless it has another generation or does not exist."""
        with self._opened() as blob:
            try:
                blob.delete(if_generation_match=generation, **self._patience())
            except (_exceptions().NotFound, _exceptions().PreconditionFailed):
                return

    def location(self) -> str | None:
        """Returns where its bucket lies, ``US-WEST4`` or ``EU``; ``None``: one may not see that."""
        with self._opened() as blob:
            try:
                return blob.bucket.client.get_bucket(self._bucket, **self._patience()).location
            except _exceptions().Forbidden:
                return None

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Gives the client's object, and turns what it raises into a line."""
        try:
            storage = importlib.import_module("google.cloud.storage")
        except ImportError as error:
            raise UserError(f"{self._path}: {NOT_INSTALLED}") from error
        known = _exceptions()
        try:
            with storage.Client() as client:
                yield client.bucket(self._bucket).blob(self._name)
            OUTAGE.answered()
        except (
            importlib.import_module("google.auth.exceptions").GoogleAuthError,
            known.Unauthorized,
        ) as error:
            raise NoCredentials(f"{self._path}: no access ({reason_of(error)}); {LOGIN}") from error
        except known.NotFound as error:
            raise UserError(f"{self._path}: no such bucket") from error
        except known.Forbidden as error:
            raise UserError(
                f"{self._path}: no permission; needed on gs://{self._bucket}: "
                "roles/storage.objectUser"
            ) from error

    def _patience(self) -> dict[str, Any]:
        """Returns when to try one request again, and how long to wait for its answer."""
        retry = importlib.import_module("google.cloud.storage.retry").DEFAULT_RETRY
        # With pauses much shorter than a lock's missed heartbeats.
        retry = retry.with_delay(FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS).with_timeout(None)
        failed = BucketPatience(self._path).failed
        return {"retry": functools.partial(retry, on_error=failed), "timeout": (10, 10)}


def _exceptions() -> Any:
    return importlib.import_module("google.api_core.exceptions")
