"""Files of a fine-tuning task are uploaded to a bucket once, and read from it."""

from pathlib import Path

import pytest

from bert_jax.files.download import local_copy
from bert_jax.launch.host_paths import for_upload, task_paths, upload
from bert_jax.tasks.rerank.candidates import read_directory
from bert_jax.tasks.search.directory import is_directory
from tests.project import refuses
from tests.storage.cloud import Cloud
from tests.tasks.rerank.data import write_candidates
from tests.tasks.search.data import pairs, write_nano


def test_a_local_path_is_itself() -> None:
    assert local_copy("data/train.csv") == Path("data/train.csv")


def test_a_bucket_file_is_copied_once_or_named_as_missing(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    (bucket / "data" / "train.csv").write_text("text,label\n")
    found = local_copy(f"{bucket}/data/train.csv")
    assert found.read_text() == "text,label\n"
    assert str(found).endswith(f"/{bucket.name}/data/train.csv")
    (bucket / "data" / "train.csv").write_text("changed")
    assert local_copy(f"{bucket}/data/train.csv") is found
    with refuses("file.missing", place=f"{bucket}/data/dev.csv"):
        local_copy(f"{bucket}/data/dev.csv")


@pytest.mark.parametrize("name", ["nano/NanoMade", "beir"])
def test_a_directory_of_search_is_read(cloud: Cloud, tmp_path: Path, name: str) -> None:
    bucket = cloud.make_bucket()
    write_nano(tmp_path / "nano", pairs(4, 1), [[0, 1]] * 4)
    write_candidates(tmp_path / "beir", pairs(4, 1))
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        target = bucket / path.relative_to(tmp_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    local, remote = (read_directory(f"{each}/{name}", "dev") for each in (tmp_path, bucket))
    assert remote[0] == local[0]
    assert is_directory(f"{bucket}/{name}")


def test_a_glue_directory_is_uploaded_once_and_read(cloud: Cloud, tmp_path: Path) -> None:
    bucket = str(cloud.make_bucket())
    for name in ("MRPC/train.tsv", "MRPC/dev.tsv", "QQP/train.tsv"):
        (tmp_path / "glue" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "glue" / name).write_text(name)
    task = {"kind": "glue", "name": "mrpc", "data": str(tmp_path / "glue"), "data_dir": None}
    staged, uploads = for_upload(task, bucket)
    assert staged["data"].startswith(f"{bucket}/files/sha256-")
    assert staged["data"].endswith("/MRPC")
    said: list[str] = []
    upload(uploads, say=said.append)
    assert len(said) == 2
    upload(uploads, say=said.append)
    assert len(said) == 2
    copied = local_copy(staged["data"])
    assert {path.name: path.read_text() for path in copied.iterdir()} == {
        "train.tsv": "MRPC/train.tsv",
        "dev.tsv": "MRPC/dev.tsv",
    }


@pytest.mark.parametrize(
    ("path", "target"), [("glue", "gs://b/glue"), ("gs://c/glue", "gs://c/glue")]
)
def test_missing_relative_paths_are_taken_from_the_bucket(path: str, target: str) -> None:
    task = {"kind": "glue", "name": "mrpc", "data": path}
    assert for_upload(task, "gs://b") == (task | {"data": target}, [])


def test_tfds_is_refused_because_hosts_lack_it() -> None:
    task = {"kind": "glue", "name": "mrpc", "data": "tfds"}
    with refuses("submit.task_tfds", place="finetune.task.data", found="tfds"):
        for_upload(task, "gs://b")


def test_a_hub_table_does_not_use_the_bucket() -> None:
    task = {"kind": "table", "train": "hf://datasets/o/n/train.csv", "dev": "dev.csv", "test": None}
    assert for_upload(task, "gs://b") == (task | {"dev": "gs://b/dev.csv"}, [])
    assert task_paths(task) == {"dev": "dev.csv"}


def test_a_missing_absolute_path_is_refused() -> None:
    task = {"kind": "squad", "train": "/no/where.json"}
    with refuses("submit.local_path", place="finetune.task.train", found="/no/where.json"):
        for_upload(task, "gs://b")
