"""Errors about missing clients, credentials, permissions or buckets name the remedy."""

import sys
from typing import Any

import fsspec
import pytest
from etils import epath
from fsspec.registry import _registry
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError, validate_response

from bert_jax.diagnostics.findings import Finding
from bert_jax.diagnostics.machine import check_run_dir
from bert_jax.errors import NoCredentials
from bert_jax.files import bucket as client
from bert_jax.files.lock import CloudObject
from tests.project import refuses
from tests.storage.cloud import Cloud, forget_clients


@pytest.fixture
def answer(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Status of every answer. The emulator itself never refuses access."""
    held: list[int] = []

    async def send(self: GCSFileSystem, method: str, path: str, *args: str, **_: object) -> None:
        validate_response(held[0], b'{"error": {"message": "Anonymous caller"}}', path, args)

    monkeypatch.setattr(client, "_SEND", send)
    return held


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_missing_bucket_is_never_created(cloud: Cloud) -> None:
    del cloud
    missing = epath.Path("gs://nobody-made-it/run")
    for attempt in (missing.exists, missing.mkdir, lambda: (missing / "a").write_text("x")):
        with refuses("bucket.missing", place="gs://nobody-made-it"):
            attempt()
    assert (
        "gcloud storage buckets create gs://nobody-made-it"
        in only(check_run_dir(str(missing))).text
    )


def test_a_bucket_can_be_written_to(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    assert only(check_run_dir(str(bucket / "run"))).level == "ok"
    assert not list(bucket.iterdir())


@pytest.mark.parametrize(
    ("status", "key", "values"),
    [
        (401, "gcp.no_credentials", {}),
        (403, "bucket.no_permission", {"reason": "Anonymous caller", "bucket": "gs://bucket"}),
    ],
)
def test_denied_access_names_the_remedy(
    answer: list[int], status: int, key: str, values: dict[str, Any]
) -> None:
    answer.append(status)
    path = epath.Path("gs://bucket/run/a")
    for attempt in (path.exists, path.read_text):
        with refuses(key, place=path, **values):
            attempt()


def test_expired_credentials_are_retried_and_then_named(
    answer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    del answer
    tries = []

    async def send(*args: object, **kwargs: object) -> None:
        tries.append(args)
        raise HttpError({"code": 401, "message": "Invalid Credentials"})

    monkeypatch.setattr(client, "_SEND", send)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.001)
    path = epath.Path("gs://bucket/run/a")
    fs = fsspec.filesystem("gcs", finalize_on_close=True)
    monkeypatch.setattr(fs.credentials, "credentials", object())
    reason = "Invalid Credentials, 401"
    with refuses("gcp.credentials", kind=NoCredentials, place=path, reason=reason):
        fs.cat_file(str(path))
    assert len(tries) == 4


def test_without_the_clients_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    monkeypatch.delitem(sys.modules, "bert_jax.files.bucket")
    monkeypatch.delitem(_registry, "gcs", raising=False)
    forget_clients()
    assert "pip install '.[gcp]'" in only(check_run_dir("gs://bucket/run")).text
    with refuses("install.missing"):
        CloudObject("gs://bucket/lock").read()
