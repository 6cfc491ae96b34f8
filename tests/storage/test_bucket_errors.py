"""Failed bucket requests are retried. An error that a user can fix is one line."""

import os
import re
import time

import pytest

from bert_jax.errors import RunStopped
from bert_jax.files import bucket as client
from bert_jax.files import storage_retries
from bert_jax.files.lock import CloudObject
from tests.project import refuses
from tests.storage.cloud import Cloud
from tests.storage.faults import Faults


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens pauses to milliseconds."""
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(client, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(client, "_HASTY_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", ["refused", "reset", "cut"])
def test_operations_survive_half_of_requests_failing(cloud: Cloud, kind: str) -> None:
    bucket = cloud.make_bucket()
    cloud.proxy.inject(Faults(**{kind: 0.5}, seed=1))
    content = {f"{index}.bin": os.urandom(1000 + index) for index in range(12)}
    for name, raw in content.items():
        (bucket / "deep" / name).write_bytes(raw)
    large = os.urandom(33 << 20)  # uploaded in several pieces
    # After "reset" or "cut", the client sends the last piece again. The service accepts this, but
    # the emulator has already forgotten the upload.
    if kind == "refused":
        (bucket / "deep" / "large.bin").write_bytes(large)
        content["large.bin"] = large
    assert sorted(path.name for path in (bucket / "deep").iterdir()) == sorted(content)
    for name, raw in content.items():
        assert (bucket / "deep" / name).read_bytes() == raw
    assert not (bucket / "deep" / "other").exists()
    # If the answer to a deletion is lost, the repeated request finds nothing.
    (bucket / "deep" / "0.bin").unlink(missing_ok=True)
    (bucket / "deep").rmtree()
    assert not (bucket / "deep").exists()
    assert cloud.proxy.failed[kind] > 5


@pytest.mark.usefixtures("hasty")
def test_an_unreachable_bucket_ends_a_run_in_one_line(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage_retries, "GIVE_UP_SECONDS", 0.5)
    monkeypatch.setattr(
        storage_retries._log, "disabled", False
    )  # another test runs import-linter, which disables it
    monkeypatch.setattr(storage_retries, "_QUIET_SECONDS", 0.1)
    monkeypatch.setattr(storage_retries, "_logged_at", [-1e9])
    bucket = cloud.make_bucket()
    cloud.proxy.down = True
    with refuses("bucket.no_answer", kind=RunStopped, place=bucket) as caught:
        (bucket / "a b").write_text("x")
    assert re.search("try again, (429|503)", str(caught.value))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "bert_jax.files"]
    assert line.startswith(f"{bucket}: no answer")
    assert line.endswith("up to 0 min")
    cloud.proxy.down = False
    (bucket / "a b").write_text("x")


@pytest.mark.usefixtures("hasty")
def test_all_requests_of_an_outage_share_one_deadline(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_retries, "GIVE_UP_SECONDS", 1.0)
    bucket = cloud.make_bucket()
    requests = (
        lambda: (bucket / "a").write_text("x"),
        lambda: (bucket / "a").exists(),
        CloudObject(f"{bucket}/lock").read,
    )

    def waited() -> float:
        begun = time.monotonic()
        for request in requests:
            with refuses("bucket.no_answer", kind=RunStopped):
                request()
        return time.monotonic() - begun

    cloud.proxy.down = True
    assert waited() > 1.0  # the first request waits
    cloud.proxy.reset()
    cloud.proxy.down = True
    assert waited() < 0.9
    assert cloud.proxy.requests.total() < 10  # no request is retried
    cloud.proxy.down = False
    (bucket / "a").write_text("x")
    cloud.proxy.down = True
    assert waited() > 1.0  # an answer ended the first outage
