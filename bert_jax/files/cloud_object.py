"""One object in Google Cloud Storage, replaced only if its generation is the expected one."""

import json
import urllib.parse
import uuid
from typing import Any, NamedTuple

import fsspec

from bert_jax.errors import UserError


class ObjectVersion(NamedTuple):
    """One version of an object."""

    generation: int  # a new one with each write
    raw: bytes


class CloudObject:
    """An object, by name. `bert_jax.files.bucket` sends its requests, and raises their errors."""

    def __init__(self, path: str) -> None:
        """Opens no connection; ``path`` is ``gs://bucket/name``."""
        self._path = path
        self._bucket, _, self._name = path.partition("://")[2].partition("/")

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        """Writes the object and returns its new generation.

        The content is unlike that of any other writer. `replaces` is the generation that the object
        must have now; 0: it must not exist. If it has another one, None; nothing was written then.
        """
        system = self._system()
        asked = {"uploadType": "multipart", "ifGenerationMatch": replaces, "name": self._name}
        url = f"{system.upload_base}b/{self._bucket}/o?{urllib.parse.urlencode(asked)}"
        mark = uuid.uuid4().hex
        before = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{{}}\r\n--{mark}\r\n\r\n"
        body = before.encode() + raw + f"\r\n--{mark}--".encode()
        headers = {"Content-Type": f"multipart/related; boundary={mark}"}
        try:
            _, found = system.call("POST", url, data=body, headers=headers)
        except FileExistsError:
            # By us, if the answer to an earlier try was lost.
            now = self.read()
            return now.generation if now is not None and now.raw == raw else None
        return int(json.loads(found)["generation"])

    def read(self) -> ObjectVersion | None:
        """Returns the current version; None if the object does not exist."""
        try:
            headers, raw = self._call("GET", alt="media")
        except FileNotFoundError:
            return None
        return ObjectVersion(int(headers["x-goog-generation"]), raw)

    def delete(self, *, generation: int) -> None:
        """Deletes the object unless it has another generation or does not exist."""
        try:
            self._call("DELETE", ifGenerationMatch=generation)
        except (FileNotFoundError, FileExistsError):
            return

    def location(self) -> str | None:
        """Returns the location of its bucket, ``US-WEST4`` or ``EU``; None without permission."""
        try:
            return self._system().call("GET", "b/{}", self._bucket, json_out=True)["location"]
        except FileNotFoundError as error:
            raise UserError(f"{self._path}: no such bucket") from error
        except OSError as error:
            if str(error).startswith("Forbidden"):
                return None
            raise

    def _call(self, method: str, **asked: Any) -> Any:
        return self._system().call(method, "b/{}/o/{}", self._bucket, self._name, **asked)

    def _system(self) -> Any:
        """Returns the client, with time-outs much shorter than a lock's missed heartbeats."""
        return fsspec.filesystem("gcs", hasty=True)
