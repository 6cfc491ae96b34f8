import io
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from etils import epath
from etils.epath import backend
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from bert_jax.config import parse_config
from bert_jax.errors import RunStopped, UserError
from bert_jax.files import atomic as disk
from bert_jax.files.cloud_object import CloudObject, ObjectVersion
from bert_jax.files.lock import ObjectLock
from bert_jax.pipelines.engines.beam import BeamSection
from bert_jax.pipelines.examples import ExamplesSection, make_examples
from bert_jax.verbs.examples import ExtraOutputs, examples
from tests.corpus import section, write_corpus, write_tokenizer

CLEANING = {"duplicate_documents": True, "near_duplicates": {}, "duplicate_lines": "corpus"}


class Upload(io.FileIO):
    """An object on its way. As in a bucket, it is there once it is closed, and then whole."""

    def __init__(self, target: Path, *, aside: Path) -> None:
        super().__init__(aside, "wb")
        self._target, self._aside = target, aside

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._aside.replace(self._target)


class Bucket(DirFileSystem):
    """A bucket, on this machine's disk. As there, a directory is what its files' names share."""

    def _join(self, path: Any) -> Any:
        if isinstance(path, str):
            return super()._join(path.removeprefix("gs://"))
        return [self._join(each) for each in path]

    def mkdir(self, path: str, **kwargs: Any) -> None:
        """Does nothing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Does nothing."""

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if "w" not in mode:
            return super().open(path, mode, **kwargs)
        target = Path(self._join(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(self.path).with_name(f"upload-{uuid.uuid4().hex}")
        writer = io.BufferedWriter(Upload(target, aside=aside))
        return writer if "b" in mode else io.TextIOWrapper(writer, encoding="utf-8")

    def rename(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("objects cannot be renamed")


class FakeObject(CloudObject):
    """An object with the generations of Google Cloud Storage."""

    held: ClassVar[dict[str, ObjectVersion]] = {}
    _generations = itertools.count(1)
    _busy = threading.Lock()

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        with self._busy:
            now = self.held.get(self._path)
            if replaces != (0 if now is None else now.generation):
                return None
            self.held[self._path] = ObjectVersion(next(self._generations), raw)
            return self.held[self._path].generation

    def read(self) -> ObjectVersion | None:
        return self.held.get(self._path)

    def delete(self, *, generation: int) -> None:
        now = self.held.get(self._path)
        if now is not None and now.generation == generation:
            del self.held[self._path]


def object_lock(
    path: epath.PathLike, *, say: Callable[[str], None] = lambda line: None
) -> ObjectLock:
    return ObjectLock(FakeObject(str(path)), say=say, heartbeat_seconds=0.1)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that stands for ``gs://``."""
    root = tmp_path / "cloud"
    remote = Bucket(path=str(root), fs=LocalFileSystem())
    monkeypatch.setattr("etils.epath.gpath._is_tf_installed", lambda: False)
    monkeypatch.setattr(
        backend.fsspec_backend,
        "_get_filesystem",
        lambda name: remote if name == "gcs" else fsspec.filesystem(name),
    )
    monkeypatch.setattr("bert_jax.pipelines.workspace.lock_at", object_lock)
    monkeypatch.setattr("bert_jax.pipelines.tokenised.corpus._MIN_PART_BYTES", 1000)
    FakeObject.held.clear()
    return root / "bucket"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two files with some documents in common, a tokenizer, an evaluation set."""
    write_corpus(tmp_path / "text0.txt", documents=range(30))
    write_corpus(tmp_path / "text1.txt", documents=range(20, 50))
    write_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "eval.txt").write_text("mark3 the mill saw the old dog in winter again .\n")
    return tmp_path


def wanted(corpus: Path, **changes: Any) -> ExamplesSection:
    contamination = {"files": (str(corpus / "eval.txt"),), "ngram": 3}
    cleaning = CLEANING | {"contamination": contamination}
    return section(corpus, **({"cleaning": cleaning, "output": "gs://bucket/dataset"} | changes))


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {
            "engine": "beam",
            "workers": None,
            "beam": BeamSection(
                options=("--direct_running_mode=in_memory", "--direct_num_workers=1")
            ),
        },
    ],
    ids=["local", "beam"],
)
def test_a_dataset_in_a_bucket_has_the_bytes_of_a_local_one(
    corpus: Path, bucket: Path, engine: dict[str, Any]
) -> None:
    make_examples(wanted(corpus, output=str(corpus / "dataset")))
    made = make_examples(wanted(corpus, **engine))
    assert files(bucket / "dataset") == files(corpus / "dataset")
    assert files(bucket).keys() == {f"dataset/{name}" for name in files(corpus / "dataset")}
    assert FakeObject.held == {}
    assert make_examples(wanted(corpus)) == made


class Stopped(Exception):
    pass


def stop_at(line: str) -> Callable[[str], None]:
    def say(said: str) -> None:
        if said.startswith(line):
            raise Stopped

    return say


def test_a_run_that_stopped_goes_on_in_the_bucket(corpus: Path, bucket: Path) -> None:
    make_examples(wanted(corpus, output=str(corpus / "dataset")))
    with pytest.raises(Stopped):
        make_examples(wanted(corpus), progress=stop_at("tokenised part 3 "))
    work = bucket / "dataset.partial" / "work"
    # As if killed while a directory was written: what is written last is not there yet.
    (work / "part-00001" / "tally.json").unlink()
    (work / "part-00001" / "counts.npy").write_bytes(b"half")
    with pytest.raises(Stopped):
        make_examples(wanted(corpus), progress=stop_at("shard 2 "))
    assert "provenance.json" not in files(bucket / "dataset")
    shards = {p.name: p.stat().st_mtime_ns for p in bucket.glob("dataset/*array_record*")}
    assert len(shards) == 2
    with pytest.raises(UserError, match="seed was 11, now 12"):
        make_examples(wanted(corpus, seed=12))
    make_examples(wanted(corpus))
    assert files(bucket / "dataset") == files(corpus / "dataset")
    assert {n: (bucket / "dataset" / n).stat().st_mtime_ns for n in shards} == shards


def test_a_corpus_without_text_leaves_nothing_in_the_bucket(corpus: Path, bucket: Path) -> None:
    good = (corpus / "text0.txt").read_bytes()
    for number in range(2):
        (corpus / f"text{number}.txt").write_text("")
    with pytest.raises(UserError, match="input: no document"):
        make_examples(wanted(corpus))
    assert files(bucket) == {}
    assert FakeObject.held == {}
    (corpus / "text0.txt").write_bytes(good)
    make_examples(wanted(corpus))


def test_other_files_in_the_bucket_are_never_overwritten(corpus: Path, bucket: Path) -> None:
    (bucket / "dataset").mkdir(parents=True)
    (bucket / "dataset" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="gs://bucket/dataset holds other files"):
        make_examples(wanted(corpus))


def test_a_second_run_on_one_bucket_is_refused(corpus: Path, bucket: Path) -> None:
    first = object_lock("gs://bucket/dataset.lock")
    assert first.take()
    lines: list[str] = []
    with pytest.raises(UserError, match="gs://bucket/dataset: another run is making this dataset"):
        make_examples(wanted(corpus), progress=lines.append)
    assert "to see whether it is alive" in lines[0]
    first.give_back()
    make_examples(wanted(corpus))


def test_a_bucket_that_cannot_be_reached_is_one_line(
    corpus: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(path: Any) -> bool:
        raise OSError("Could not resolve host: storage.googleapis.com")

    monkeypatch.setattr(backend.fsspec_backend, "exists", unreachable)
    with pytest.raises(UserError, match=r"output: gs://bucket/dataset cannot be reached \(Could"):
        make_examples(wanted(corpus))


def test_a_dataset_in_a_bucket_is_not_looked_at(corpus: Path, bucket: Path) -> None:
    values = {"examples": wanted(corpus).model_dump(mode="json")}
    config = parse_config(values, source="test")
    with pytest.raises(UserError, match=r"^examples\.output: gs://bucket/dataset is in a bucket"):
        examples(config, extra=ExtraOutputs(inspect=1))


def test_the_lock_of_a_dead_holder_is_taken_over_by_one(bucket: Path) -> None:
    FakeObject("gs://bucket/lock").write(b"dead", replaces=0)
    locks = [object_lock("gs://bucket/lock") for _ in range(4)]
    taken: list[bool] = []
    threads = [
        threading.Thread(target=lambda lock=lock: taken.append(lock.take())) for lock in locks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False, False, False, True]
    for lock in locks:
        lock.give_back()
    assert FakeObject.held == {}


def test_a_holder_that_lost_its_lock_stops_and_leaves_the_others_alone(bucket: Path) -> None:
    lock = object_lock("gs://bucket/lock")
    assert lock.take()
    lock.check()
    other = ObjectVersion(10**9, b"other")
    FakeObject.held["gs://bucket/lock"] = other
    lock._thread.join(10)
    with pytest.raises(RunStopped, match="another process has taken the lock"):
        lock.check()
    lock.give_back()
    assert FakeObject.held["gs://bucket/lock"] == other


def test_a_lost_answer_does_not_lose_the_lock(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = object_lock("gs://bucket/lock")
    assert lock.take()
    written = threading.Event()

    def write(self: FakeObject, raw: bytes, *, replaces: int) -> int | None:
        monkeypatch.undo()
        self.write(raw, replaces=replaces)
        written.set()
        raise ConnectionError("reset")

    monkeypatch.setattr(FakeObject, "write", write)
    assert written.wait(10)
    unanswered = FakeObject.held["gs://bucket/lock"].generation
    end = time.monotonic() + 10
    while FakeObject.held["gs://bucket/lock"].generation == unanswered:
        assert time.monotonic() < end, "the next beat was not written in its place"
        time.sleep(0.01)
    lock.check()
    lock.give_back()
    assert FakeObject.held == {}


def test_a_directory_is_whole_once_its_last_file_is_there(bucket: Path) -> None:
    target = "gs://bucket/directory"
    with disk.whole_directory(target, last="a.json") as aside:
        (aside / "a.json").write_text("{}")
        (aside / "deep").mkdir()
        (aside / "deep" / "z.npy").write_bytes(b"z")
        assert not bucket.exists()
    assert files(bucket / "directory").keys() == {"a.json", "deep/z.npy"}
    assert disk.is_whole(target, last="a.json")
    times = [(bucket / "directory" / n).stat().st_mtime_ns for n in ("deep/z.npy", "a.json")]
    assert times == sorted(times)
