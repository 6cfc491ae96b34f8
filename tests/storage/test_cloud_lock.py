"""The lock in a bucket works although requests fail."""

import os
import threading
import time
import types
from collections.abc import Iterator

import pytest

from bert_jax.errors import RunStopped
from bert_jax.files import bucket as client
from bert_jax.files import lock as lock_module
from bert_jax.files import storage_retries
from bert_jax.files.lock import CloudObject, LockLost, ObjectLock
from tests.project import refuses
from tests.storage.cloud import Cloud
from tests.storage.faults import Faults


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(client, "_HASTY_PAUSE_SECONDS", 0.05)


def lock(path: object, *, heartbeat_seconds: float = 0.3) -> ObjectLock:
    held = CloudObject(f"{path}/run.lock")
    return ObjectLock(held, say=lambda line: None, heartbeat_seconds=heartbeat_seconds)


def test_refusal_of_the_lock_names_its_holder(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    cloud.proxy.inject(Faults(refused=0.2, reset=0.2, seed=4))
    first, second = lock(bucket), lock(bucket)
    assert first.take()
    assert not second.take()
    assert f"{os.uname().nodename} {os.getpid()}" in second.holder
    first.check()
    first.give_back()
    assert second.take()
    second.give_back()
    assert not list(bucket.iterdir())
    assert cloud.proxy.failed["reset"] > 1


def test_only_one_of_many_takes_the_lock(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    locks = [lock(bucket) for _ in range(4)]
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda one=one: taken.append(one.take())) for one in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False, False, False, True]
    for one in locks:
        one.give_back()


def test_a_dead_holders_lock_is_taken_over(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    CloudObject(f"{bucket}/run.lock").write(b"host 1 dead\n", replaces=0)
    begun = time.monotonic()
    one = lock(bucket)
    assert one.take()
    assert time.monotonic() - begun > 0.9
    one.give_back()


def test_a_lost_answer_does_not_lose_the_lock(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    held = CloudObject(f"{bucket}/object")
    cloud.proxy.inject(Faults(reset=0.6, seed=0))
    generation = held.write(b"first", replaces=0)
    assert generation is not None
    assert held.write(b"other", replaces=0) is None
    assert held.write(b"second", replaces=generation) is not None
    assert cloud.proxy.failed["reset"] > 1


class HeartbeatsWait(CloudObject):
    """An object whose heartbeats wait until `over` is set, as in an outage."""

    over: threading.Event

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        if threading.current_thread().name == "lock":
            self.over.wait(60)
        return super().write(raw, replaces=replaces)


@pytest.fixture
def cut_off(cloud: Cloud) -> Iterator[ObjectLock]:
    """A lock that is held while its heartbeats get no answer."""
    held = HeartbeatsWait(f"{cloud.make_bucket()}/run.lock")
    held.over = threading.Event()
    first = ObjectLock(held, say=lambda line: None, heartbeat_seconds=0.1)
    assert first.take()
    yield first
    held.over.set()
    first.give_back()


def raw_at(one: ObjectLock) -> bytes:
    found = one._object.read()
    assert found is not None
    return found.raw


def test_a_long_outage_reveals_another_holder(
    cut_off: ObjectLock,
) -> None:
    second = ObjectLock(
        CloudObject(cut_off._object._path), say=lambda line: None, heartbeat_seconds=0.1
    )
    assert second.take()
    with refuses("lock.lost", kind=LockLost):
        cut_off.check()
    second.check()
    assert raw_at(second) == second._raw
    second.give_back()


def test_a_long_outage_keeps_an_untaken_lock(cut_off: ObjectLock) -> None:
    before = cut_off._generation
    time.sleep(0.4)
    cut_off.check()
    assert cut_off._generation != before  # renewed, so other processes see that the holder is alive
    assert raw_at(cut_off) == cut_off._raw


def test_an_unverifiable_lock_ends_the_run(
    cloud: Cloud, cut_off: ObjectLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_retries, "GIVE_UP_SECONDS", 0.2)
    cloud.proxy.down = True
    time.sleep(0.4)
    with refuses("bucket.no_answer", kind=RunStopped, place=cut_off._object._path):
        cut_off.check()
    cloud.proxy.down = False
    cut_off.check()  # still held


@pytest.mark.parametrize("counts", ["since boot", "of day"])
def test_a_paused_machine_checks_the_lock_before_writing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, counts: str
) -> None:
    """Each clock advances in one kind of pause: during sleep, or in a paused virtual machine."""
    held = CloudObject(f"{cloud.make_bucket()}/run.lock")
    first = ObjectLock(held, say=lambda line: None, heartbeat_seconds=1000.0)
    assert first.take()
    assert first._generation is not None
    assert held.write(b"of another process", replaces=first._generation) is not None
    cloud.proxy.reset()
    for _ in range(100):
        first.check()
    assert not cloud.proxy.requests  # no request if no heartbeat is due
    asleep = {"since boot": 0.0, "of day": 0.0, counts: 3000.0}
    clocks = types.SimpleNamespace(
        clock_gettime=lambda clock: time.clock_gettime(clock) + asleep["since boot"],
        time=lambda: time.time() + asleep["of day"],
    )
    monkeypatch.setattr(lock_module, "time", clocks)
    with pytest.raises(LockLost):
        first.check()
    first.give_back()
    assert raw_at(first) == b"of another process"
