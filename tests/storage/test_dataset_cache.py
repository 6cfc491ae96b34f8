"""A dataset in a bucket is copied once, completely, and verified."""

import json
import multiprocessing
import os
import shutil
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from etils import epath

from bert_jax.data.dataset import cache as module
from bert_jax.data.dataset.cache import CacheSection, DatasetCache
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.errors import RunStopped
from bert_jax.files import download, storage_retries
from tests.project import refuses
from tests.storage.cloud import Cloud
from tests.storage.faults import Faults


@pytest.fixture
def source(cloud: Cloud, project: Path) -> epath.Path:
    """A dataset in a bucket."""
    target = cloud.make_bucket() / "wiki"
    for path in (project / "dataset32").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    cloud.proxy.reset()
    return target


def let_go() -> None:
    """Releases the cached datasets that this process uses."""
    while module._held:
        os.close(module._held.pop())


@pytest.fixture(autouse=True)
def _free() -> Iterator[None]:
    yield
    let_go()


def cache(root: Path, lines: list[str] | None = None, **settings: float) -> DatasetCache:
    section = CacheSection.model_validate({"directory": str(root), **settings})
    return DatasetCache(section, say=[].append if lines is None else lines.append)


def downloads(cloud: Cloud) -> int:
    return sum(count for name, count in cloud.proxy.requests.items() if "array_record" in name)


def shard(source: epath.Path) -> epath.Path:
    (path,) = source.glob("*train.array_record*")
    return path


def test_a_dataset_is_copied_once_and_has_every_byte(
    cloud: Cloud, source: epath.Path, project: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    local = cache(tmp_path, lines).local(str(source))
    assert Path(local).name.startswith("wiki-")
    assert lines[0].endswith(f"in 6 files to {local}.partial")
    assert lines[1] == f"{source}: copied to {local}"
    held = {path.name: path.read_bytes() for path in Path(local).iterdir()}
    assert held == {path.name: path.read_bytes() for path in (project / "dataset32").iterdir()}
    for split in ("train", "validation"):
        open_dataset(local, split).verify()
    before = downloads(cloud)
    assert cache(tmp_path).local(str(source)) == local
    assert downloads(cloud) == before
    assert cache(tmp_path).local(local) == local


def test_an_interrupted_copy_resumes(
    cloud: Cloud, source: epath.Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(storage_retries, "GIVE_UP_SECONDS", 0.0)
    cloud.proxy.inject(Faults(answered=16))
    with refuses("bucket.no_answer", kind=RunStopped):
        cache(tmp_path).local(str(source))
    cloud.proxy.reset()
    (partial,) = tmp_path.glob("*.partial")
    have = sum(path.stat().st_size for path in partial.iterdir())
    local = Path(cache(tmp_path).local(str(source)))
    open_dataset(local, "train").verify()
    assert have > 0
    assert not partial.exists()


def test_a_damaged_shard_is_named_and_not_kept(source: epath.Path, tmp_path: Path) -> None:
    path = shard(source)
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(bytes(raw))
    with refuses("file.damaged", place=path):
        cache(tmp_path).local(str(source))
    assert not list(tmp_path.glob("*/provenance.json"))
    path.write_bytes(bytes(raw[:-1]))
    with refuses("dataset.file_size", place=path, found=len(raw) - 1, expected=len(raw)):
        cache(tmp_path).local(str(source))
    path.unlink()
    with refuses("dataset.file_missing", place=path):
        cache(tmp_path).local(str(source))


def test_a_missing_dataset_is_named(source: epath.Path, tmp_path: Path) -> None:
    with refuses("dataset.missing", place=source / "deep"):
        cache(tmp_path).local(str(source / "deep"))


def test_a_remade_dataset_is_copied_again(source: epath.Path, tmp_path: Path) -> None:
    first = cache(tmp_path).local(str(source))
    provenance = source / "provenance.json"
    provenance.write_text(json.dumps(json.loads(provenance.read_text()), indent=2))
    assert cache(tmp_path).local(str(source)) != first


def test_too_small_a_disk_is_one_line(
    source: epath.Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 9 * 10**5, 10**5))
    values = {"directory": tmp_path, "dataset": source, "free_gb": 0.0001}
    with refuses("cache.disk_full", place="loader.cache.directory", **values):
        cache(tmp_path).local(str(source))


def test_the_least_recently_used_copy_is_evicted(
    cloud: Cloud, source: epath.Path, tmp_path: Path
) -> None:
    others = [cloud.make_bucket() / name for name in ("b", "c")]
    for other in others:
        for path in source.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
    size = sum(path.stat().length for path in source.iterdir()) / 1e9
    first = cache(tmp_path).local(str(source))
    limit = {"found": 1.5 * size, "dataset": others[0]}
    with refuses("cache.limit", place="loader.cache.max_gb", **limit):
        cache(tmp_path, max_gb=1.5 * size).local(str(others[0]))
    second = cache(tmp_path, max_gb=2.5 * size).local(str(others[0]))
    let_go()
    assert cache(tmp_path).local(str(source)) == first  # now the second is least recently used
    lines: list[str] = []
    third = cache(tmp_path, lines, max_gb=2.5 * size).local(str(others[1]))
    assert f"{second}: deleted" in "\n".join(lines)
    assert [Path(path).exists() for path in (first, second, third)] == [True, False, True]


def _stage(arguments: tuple[str, str]) -> str:
    root, source = arguments
    return cache(Path(root)).local(source)


def test_only_one_process_copies(cloud: Cloud, source: epath.Path, tmp_path: Path) -> None:
    cloud.proxy.inject(Faults(slow=0.5))
    # Spawn: the fork server of an earlier test does not have this emulator's URL.
    with multiprocessing.get_context("spawn").Pool(2) as processes:
        found = processes.map(_stage, [(str(tmp_path), str(source))] * 2, chunksize=1)
    assert found[0] == found[1]
    assert downloads(cloud) == 2  # one per shard
