"""A local test double of the Hugging Face hub, for models and datasets."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The content of the hub, and the requests it has received.

    Attributes:
        models: directories by model name. The name of a dataset starts with ``datasets/``.
        pushed: contents of uploaded files, by model name and path.
        created: bodies of requests that create a model.
        requests: method, path and authorization of each request.
        gated: names of models that need access rights.
        address: URL of the server.
    """

    def __init__(self, models: dict[str, Path]) -> None:
        self.models = models
        self.pushed: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str, str | None]] = []
        self.gated: set[str] = set()
        self.address = ""


@contextlib.contextmanager
def serve(models: dict[str, Path]) -> Iterator[Hub]:
    """Runs a hub inside the block."""
    hub = Hub(models)

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def go_online(hub: Hub, monkeypatch: pytest.MonkeyPatch, cache: Path, token: str) -> None:
    """Lets one test reach a hub, with its own cache and token."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", token)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Suppresses the log."""

    def do_HEAD(self) -> None:
        self._read(body=False)

    def do_GET(self) -> None:
        self._read(body=True)

    def do_POST(self) -> None:
        self._note()
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else self._chunks()
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.served.created.append(asked)
            name = f"{asked['organization']}/{asked['name']}"
            return self._answer({"url": f"{self.served.address}/{name}"})
        if self.path == "/api/validate-yaml":  # YAML of a model card
            return self._answer({"errors": [], "warnings": []})
        name, _, rest = self.path.removeprefix("/api/models/").partition("/preupload/")
        if rest:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        name = self.path.removeprefix("/api/models/").partition("/commit/")[0]
        for line in body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                content = base64.b64decode(item["value"]["content"])
                self.served.pushed.setdefault(name, {})[item["value"]["path"]] = content
        url = f"{self.served.address}/{name}/commit/{COMMIT}"
        return self._answer({"commitUrl": url, "commitOid": COMMIT, "success": True})

    def _read(self, *, body: bool) -> None:
        self._note()
        path = self.path.partition("?")[0]
        if path.startswith(("/api/models/", "/api/datasets/")):
            name, kind, revision = self._parts(
                path.removeprefix("/api/").removeprefix("models/").removeprefix("datasets/")
            )
            if path.startswith("/api/datasets/"):
                name = f"datasets/{name}"
            if name in self.served.gated:
                return self._answer({}, code=403, error="GatedRepo")
            if name not in self.served.models:
                return self._answer({}, code=401, error="RepoNotFound")
            if revision not in ("main", COMMIT):
                return self._answer({}, code=404, error="RevisionNotFound")
            if kind == "tree":
                return self._answer([self._file(name, file) for file in self._files(name)])
            siblings = [{"rfilename": self._name(name, file)} for file in self._files(name)]
            return self._answer(
                {
                    "id": name.removeprefix("datasets/"),
                    "sha": COMMIT,
                    "siblings": siblings,
                    "tags": [],
                }
            )
        name, _, file = path.strip("/").partition(f"/resolve/{COMMIT}/")
        content = (self.served.models[name] / file).read_bytes()
        return self._send(content, body=body, kind="application/octet-stream")

    def _parts(self, path: str) -> tuple[str, str, str]:
        owner, name, *rest = path.split("/")
        return f"{owner}/{name}", rest[0] if rest else "", rest[1] if rest[1:] else "main"

    def _files(self, name: str) -> list[Path]:
        return sorted(file for file in self.served.models[name].rglob("*") if file.is_file())

    def _name(self, name: str, file: Path) -> str:
        return file.relative_to(self.served.models[name]).as_posix()

    def _file(self, name: str, file: Path) -> dict[str, Any]:
        oid = hashlib.sha1(file.read_bytes()).hexdigest()
        path = self._name(name, file)
        return {"type": "file", "path": path, "size": file.stat().st_size, "oid": oid}

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _note(self) -> None:
        found = self.headers.get("Authorization")
        self.served.requests.append((self.command, self.path, found))

    def _answer(self, content: Any, *, code: int = 200, error: str | None = None) -> None:
        self._send(json.dumps(content).encode(), body=True, code=code, error=error)

    def _send(
        self,
        content: bytes,
        *,
        body: bool,
        code: int = 200,
        kind: str = "application/json",
        error: str | None = None,
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        if error is not None:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if body:
            self.wfile.write(content)
