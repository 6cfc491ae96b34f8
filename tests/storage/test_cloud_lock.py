"""The lock of a bucket, on one that fails."""

import os
import threading
import time

import pytest

from bert_jax.errors import RunStopped, UserError
from bert_jax.files import cloud_object
from bert_jax.files.cloud_object import CloudObject
from bert_jax.files.lock import ObjectLock
from tests.storage.cloud import Cloud
from tests.storage.faults import Faults


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_object, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(cloud_object, "_LONGEST_PAUSE_SECONDS", 0.05)


def lock(path: object, *, heartbeat_seconds: float = 0.3) -> ObjectLock:
    held = CloudObject(f"{path}/run.lock")
    return ObjectLock(held, say=lambda line: None, heartbeat_seconds=heartbeat_seconds)


def test_the_second_is_refused_and_told_who_holds_it(cloud: Cloud) -> None:
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


def test_of_many_at_once_one_takes_it(cloud: Cloud) -> None:
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


def test_the_lock_of_a_dead_holder_is_taken_over(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    CloudObject(f"{bucket}/run.lock").write(b"host 1 dead\n", replaces=0)
    begun = time.monotonic()
    one = lock(bucket)
    assert one.take()
    assert time.monotonic() - begun > 0.9
    one.give_back()


def test_a_lost_answer_is_no_other_holder(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    held = CloudObject(f"{bucket}/object")
    cloud.proxy.inject(Faults(reset=0.6, seed=0))
    generation = held.write(b"first", replaces=0)
    assert generation is not None
    assert held.write(b"other", replaces=0) is None
    assert held.write(b"second", replaces=generation) is not None
    assert cloud.proxy.failed["reset"] > 1


def test_what_cannot_be_locked_is_one_line(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^gs://nobody-made-it/run.lock: no such bucket"):
        lock("gs://nobody-made-it").take()
    bucket = cloud.make_bucket()
    monkeypatch.setattr(cloud_object, "GIVE_UP_SECONDS", 0.2)
    cloud.proxy.down = True
    with pytest.raises(RunStopped, match=rf"^{bucket}/run.lock: no answer for "):
        lock(bucket).take()
