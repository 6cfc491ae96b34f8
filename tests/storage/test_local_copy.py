"""Files of a fine-tuning task in a bucket are as on a disk, and go there once."""

from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.files.download import local_copy
from bert_jax.launch.host_paths import for_upload, task_paths, upload
from tests.storage.cloud import Cloud


def test_a_local_path_is_itself() -> None:
    assert local_copy("data/train.csv") == Path("data/train.csv")


def test_a_file_of_a_bucket_is_copied_once_and_one_that_is_not_there_is_named(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    (bucket / "data" / "train.csv").write_text("text,label\n")
    found = local_copy(f"{bucket}/data/train.csv")
    assert found.read_text() == "text,label\n"
    assert str(found).endswith(f"/{bucket.name}/data/train.csv")
    (bucket / "data" / "train.csv").write_text("changed")
    assert local_copy(f"{bucket}/data/train.csv") is found
    with pytest.raises(UserError, match=r"^gs://.*/data/dev\.csv: no such file$"):
        local_copy(f"{bucket}/data/dev.csv")


def test_the_directory_of_a_glue_task_is_uploaded_once_and_read_by_a_host(
    cloud: Cloud, tmp_path: Path
) -> None:
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
    ("path", "target"), [("glue", "gs://b/glue"), ("gs://c/glue", "gs://c/glue"), ("tfds", "tfds")]
)
def test_what_is_not_here_counts_from_the_bucket(path: str, target: str) -> None:
    task = {"kind": "glue", "name": "mrpc", "data": path}
    assert for_upload(task, "gs://b") == (task | {"data": target}, [])


def test_a_table_of_a_hub_is_neither_uploaded_nor_looked_for_in_the_bucket() -> None:
    task = {"kind": "table", "train": "hf://datasets/o/n/train.csv", "dev": "dev.csv", "test": None}
    assert for_upload(task, "gs://b") == (task | {"dev": "gs://b/dev.csv"}, [])
    assert task_paths(task) == {"dev": "dev.csv"}


def test_an_absolute_path_that_is_not_here_is_refused() -> None:
    task = {"kind": "squad", "train": "/no/where.json"}
    with pytest.raises(
        UserError, match=r"finetune\.task\.train: found /no/where\.json, which hosts"
    ):
        for_upload(task, "gs://b")
