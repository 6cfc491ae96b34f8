"""The client for ``gs://`` paths. Our code, etils and Orbax's metadata use it.

:mod:`bert_jax.files.remote` registers :class:`Bucket` with fsspec, which imports this module at the
first use. tensorstore reads and writes the arrays of checkpoints, with its own retries.
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
from bert_jax.files.storage_retries import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    OUTAGE,
    credentials_refused,
    no_credentials,
    no_such_bucket,
    reason_of,
)

# Without this setting, gcsfs probes each bucket for zonal storage over gRPC. If the probe is
# forbidden, every request prints a warning.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
try:
    import aiohttp
    import google.auth.exceptions
    from gcsfs.core import GCSFile, GCSFileSystem
    from gcsfs.retry import HttpError, is_retriable
except ImportError as error:
    raise not_installed("Google Cloud's clients", "gs://", extra="gcp") from error

# These libraries would log a traceback for each exception, also if it is handled.
for _name in ("gcsfs", "google.auth"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

# Time-outs without data. The total time is unlimited, because large objects take long.
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
_HASTY_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=10)
_HASTY_PAUSE_SECONDS: Final = 4.0

# gcsfs renews expired credentials between attempts. After three refusals, the request fails.
_LOGIN_TRIES: Final = 3

# Sends a request once. The retries of gcsfs would give up after half a minute.
_SEND: Final[Any] = inspect.unwrap(GCSFileSystem._request)

# Matches ``b/BUCKET``, ``b/BUCKET/o`` (a list or an upload) and ``b/BUCKET/o/NAME``, also in a URL.
_ADDRESS: Final = re.compile(
    r"(?:^|/)b/(?P<bucket>[^/?]+)(?P<objects>/o)?(?:/(?P<name>[^/?]+)|\?(?:.*&)?name=(?P<new>[^&]+))?"
)

# An object up to this size is uploaded in one request.
_UPLOAD_BYTES: Final = 32 << 20


class _File(GCSFile):
    """An open object. Uploads a small object in one request instead of two."""

    def flush(self, force: bool = False) -> None:
        """Uploads the buffer when the file is closed or the buffer is full."""
        if force and self.writable() and self.offset is None and not self.forced:
            self.forced = True
            self._simple_upload()
        else:
            super().flush(force)


class Bucket(GCSFileSystem):
    """Google Cloud Storage with our retries, time-outs and one-line errors.

    Retries a request with growing pauses after status 429 or 5xx, a time-out, or a refused or
    broken connection. Every operation raises UserError if the bucket does not exist, or credentials
    or permissions are missing. It raises RunStopped if the outage exceeds the limit in
    `bert_jax.files.storage_retries`.
    """

    def __init__(self, *args: Any, hasty: bool = False, **kwargs: Any) -> None:
        """With `hasty`, requests have shorter time-outs and pauses, for locks."""
        timeout = _HASTY_TIMEOUT if hasty else _TIMEOUT
        super().__init__(*args, requests_timeout=timeout, **kwargs)
        self._hasty = hasty
        self._repeats = 0

    @property
    def upload_base(self) -> str:
        """Base URL of uploads."""
        return f"{self._location}/upload/storage/v1/"

    async def _request(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        """Sends one request with retries. gcsfs calls it for all requests except `get_file`."""
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
        """Returns a UserError, or None if the caller handles the error (a missing object)."""
        where = _where(address)
        refused = isinstance(error, HttpError) and error.code == 401
        if refused or isinstance(error, google.auth.exceptions.GoogleAuthError):
            if self.credentials.credentials is None:
                return no_credentials(where)
            return credentials_refused(where, reason_of(error))
        if address is None or not address["objects"]:
            return None  # the bucket may be invisible although its objects are accessible
        bucket = f"gs://{address['bucket']}"
        if str(error).startswith("Forbidden"):
            reason = str(error).splitlines()[-1]
            return UserError(
                "bucket.no_permission",
                f"no permission ({reason}). Grant roles/storage.objectUser on {bucket}.",
                place=where,
            )
        # If the bucket exists, listing it or starting an upload never returns 404.
        starts = address["name"] is None and "upload_id=" not in address.string
        if isinstance(error, FileNotFoundError) and starts:
            return no_such_bucket(bucket)
        return None

    def _open(self, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> GCSFile:
        if not args and "w" in mode:
            kwargs.setdefault("block_size", _UPLOAD_BYTES)
        return _File(self, path, mode, *args, **kwargs)

    async def _delete_files(self, files: list[str], batchsize: int) -> list[Any]:
        """Deletes objects. After a retry, a missing object counts as deleted.

        The first attempt may have deleted it although its response was lost.
        """
        before = self._repeats
        results = await super()._delete_files(files, batchsize)
        if self._repeats == before:
            return results
        return ["" if _is_gone(result) else result for result in results]

    async def _mkdir(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: buckets have no directories, and gcsfs would create a missing bucket."""

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing."""


def _may_pass(error: Exception, tries: int) -> bool:
    """Returns whether a retry may succeed."""
    if isinstance(error, HttpError) and error.code == 401:
        return is_retriable(error) and tries < _LOGIN_TRIES
    passing = (asyncio.TimeoutError, ConnectionError, google.auth.exceptions.TransportError)
    return is_retriable(error) or isinstance(error, passing)


def _is_gone(result: Any) -> bool:
    return isinstance(result, FileNotFoundError) or (
        isinstance(result, OSError) and "No such object" in str(result)
    )


def _where(address: re.Match[str] | None) -> str:
    """Returns the ``gs://bucket/name`` of a request."""
    if address is None:
        return "gs://"
    name = address["name"] or address["new"] or ""
    return urllib.parse.unquote(f"gs://{address['bucket']}/{name}".rstrip("/"))
