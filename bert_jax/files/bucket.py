"""Google Cloud Storage for all that opens a ``gs://`` path: our code, etils, Orbax's metadata.

:mod:`bert_jax.files.remote` registers :class:`Bucket` with fsspec, which loads it at the first use.
Arrays of checkpoints go through tensorstore, which has retry rules of its own.
"""

import asyncio
import inspect
import logging
import os
import random
import re
import time
import urllib.parse
from typing import Any, Final

from bert_jax.errors import UserError, not_installed
from bert_jax.files.patience import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    OUTAGE,
    credentials_refused,
    no_credentials,
    no_such_bucket,
    reason_of,
)

# gcsfs looks for buckets of other kinds over gRPC, with warnings at each request where it may not.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
try:
    import aiohttp
    import google.auth.exceptions
    from gcsfs.core import GCSFile, GCSFileSystem
    from gcsfs.retry import HttpError, is_retriable
except ImportError as error:
    raise not_installed("Google Cloud's clients", "gs://", extra="gcp") from error

# They log what they raise, with a traceback, and where they looked for credentials.
for _name in ("gcsfs", "google.auth"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

# Of silence, not in all: a large object may take long.
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
_HASTY_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=10)
_HASTY_PAUSE_SECONDS: Final = 4.0

# Credentials that run out are renewed; those that are still refused then are wrong.
_LOGIN_TRIES: Final = 3

# One try, of the six that gcsfs makes within half a minute.
_SEND: Final[Any] = inspect.unwrap(GCSFileSystem._request)

# ``b/BUCKET``, ``b/BUCKET/o`` (lists, or uploads) and ``b/BUCKET/o/NAME``, in a URL or alone.
_ADDRESS: Final = re.compile(
    r"(?:^|/)b/(?P<bucket>[^/?]+)(?P<objects>/o)?(?:/(?P<name>[^/?]+)|\?(?:.*&)?name=(?P<new>[^&]+))?"
)


# A file up to this size is sent in one request.
_UPLOAD_BYTES: Final = 32 << 20


class _File(GCSFile):
    """An object that is read, or written whole: in one request where gcsfs makes two of each."""

    def flush(self, force: bool = False) -> None:
        """Sends what is written, on closing or once it is long."""
        if force and self.writable() and self.offset is None and not self.forced:
            self.forced = True
            self._simple_upload()
        else:
            super().flush(force)


class Bucket(GCSFileSystem):
    """Google Cloud Storage with our retries and time-outs, and errors of one line.

    A request is tried again, with growing pauses, after 429, 5xx, silence, or a connection that is
    refused or cut. Any operation raises UserError for no such bucket, no credentials or no
    permission, and RunStopped when `bert_jax.files.patience` gives up the outage.
    """

    def __init__(self, *args: Any, hasty: bool = False, **kwargs: Any) -> None:
        """With `hasty`, requests have shorter time-outs and pauses, such as a lock's."""
        timeout = _HASTY_TIMEOUT if hasty else _TIMEOUT
        super().__init__(*args, requests_timeout=timeout, **kwargs)
        self._hasty = hasty
        self._repeats = 0

    @property
    def upload_base(self) -> str:
        """The beginning of a URL to upload to."""
        return f"{self._location}/upload/storage/v1/"

    async def _request(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        """Sends one request, of all that gcsfs sends but whole files to disk."""
        quoted = (urllib.parse.quote(str(each), safe="") for each in args)
        address = _ADDRESS.search(path.format(*quoted) if args else path)
        began, tries, pause = time.monotonic(), 0, FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = await _SEND(self, method, path, *args, **kwargs)
                OUTAGE.answered()
                return answer
            except Exception as error:
                if not _may_pass(error, tries):
                    if isinstance(error, FileNotFoundError):
                        OUTAGE.answered()
                    if (mistake := self._mistake(error, address)) is None:
                        raise
                    raise mistake from error
                OUTAGE.failed(_where(address), error, waited=time.monotonic() - began)
            tries, self._repeats = tries + 1, self._repeats + 1
            await asyncio.sleep(random.uniform(0.0, pause))
            pause = min(2 * pause, _HASTY_PAUSE_SECONDS if self._hasty else LONGEST_PAUSE_SECONDS)

    def _mistake(self, error: Exception, address: re.Match[str] | None) -> UserError | None:
        """Returns what a user can mend; ``None`` for what the caller handles, a missing object."""
        where = _where(address)
        refused = isinstance(error, HttpError) and error.code == 401
        if refused or isinstance(error, google.auth.exceptions.GoogleAuthError):
            if self.credentials.credentials is None:
                return no_credentials(where)
            return credentials_refused(where, reason_of(error))
        if address is None or not address["objects"]:
            return None  # who may use a bucket's objects need not see the bucket itself
        bucket = f"gs://{address['bucket']}"
        if str(error).startswith("Forbidden"):
            reason = str(error).splitlines()[-1]
            return UserError(
                "bucket.no_permission",
                "no permission ({reason}). Grant roles/storage.objectUser on {bucket}.",
                place=where,
                reason=reason,
                bucket=bucket,
            )
        # To list a bucket that exists, or to begin an upload to it, always succeeds.
        starts = address["name"] is None and "upload_id=" not in address.string
        if isinstance(error, FileNotFoundError) and starts:
            return no_such_bucket(bucket)
        return None

    def _open(self, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> GCSFile:
        if not args and "w" in mode:
            kwargs.setdefault("block_size", _UPLOAD_BYTES)
        return _File(self, path, mode, *args, **kwargs)

    async def _delete_files(self, files: list[str], batchsize: int) -> list[Any]:
        """Deletes objects. If only the answer to a deletion was lost, the next try finds none."""
        before = self._repeats
        results = await super()._delete_files(files, batchsize)
        if self._repeats == before:
            return results
        return ["" if _is_gone(result) else result for result in results]

    async def _mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: there are no directories, and gcsfs would make a bucket that is missing."""

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing."""


def _may_pass(error: Exception, tries: int) -> bool:
    """Says whether the same request may succeed later."""
    if isinstance(error, HttpError) and error.code == 401:
        return is_retriable(error) and tries < _LOGIN_TRIES
    passing = (asyncio.TimeoutError, ConnectionError, google.auth.exceptions.TransportError)
    return is_retriable(error) or isinstance(error, passing)


def _is_gone(result: Any) -> bool:
    return isinstance(result, FileNotFoundError) or (
        isinstance(result, OSError) and "No such object" in str(result)
    )


def _where(address: re.Match[str] | None) -> str:
    """Returns what a request is about, as ``gs://bucket/name``."""
    if address is None:
        return "gs://"
    name = address["name"] or address["new"] or ""
    return urllib.parse.unquote(f"gs://{address['bucket']}/{name}".rstrip("/"))
