"""Downloads of dataset files by name, from a local hub."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from bert_jax.files.hub import fetch_file
from tests.interop.hub_server import COMMIT, Hub, go_online, serve
from tests.project import refuses, says

NAME = "someone/reviews"
TOKEN = "hf_secretsecretsecretsecret"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Starts a hub with a dataset of three tables and another file."""
    for file, text in {
        "data/train-00000-of-00001.csv": "text,label\na,1\n",
        "data/validation.csv": "text,label\nb,0\n",
        "data/extra.csv": "text,label\n",
        "README.md": "reviews",
    }.items():
        path = tmp_path / "served" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with serve({f"datasets/{NAME}": tmp_path / "served"}) as served:
        go_online(served, monkeypatch, tmp_path / "cache", TOKEN)
        yield served


def test_a_file_is_found_by_name_or_role_and_pinned(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = fetch_file(f"hf://datasets/{NAME}/data/validation.csv")
    by_role = fetch_file(f"hf://datasets/{NAME}@main", role="dev")
    assert by_name == by_role
    assert by_name.pinned == f"hf://datasets/{NAME}@{COMMIT}/data/validation.csv"
    assert by_name.path.read_text() == "text,label\nb,0\n"
    assert len(by_name.record["sha256"]) == 64
    assert fetch_file(f"hf://datasets/{NAME}", role="train").path.name.startswith("train-")
    assert {found for *_, found in hub.requests} == {f"Bearer {TOKEN}"}
    # Offline, the file is read from the cache by branch or by commit.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    assert fetch_file(by_name.pinned) == by_name
    assert fetch_file(f"hf://datasets/{NAME}", role="dev") == by_name
    assert len(hub.requests) == asked
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert TOKEN.encode() not in b"".join(file.read_bytes() for file in files)


@pytest.mark.parametrize(
    ("source", "key", "values"),
    [
        ("hf://datasets/someone", "hub.dataset_name", {"place": "hf://datasets/someone"}),
        (
            "hf://datasets/someone/other/a.csv",
            "hub.not_found",
            {"place": "someone/other", "what": "dataset"},
        ),
        (f"hf://datasets/{NAME}@v9/a.csv", "hub.revision", {"place": NAME, "found": "v9"}),
        (f"hf://datasets/{NAME}/a.csv", "file.missing", {"place": f"hf://datasets/{NAME}/a.csv"}),
    ],
)
def test_a_missing_file_is_one_line(
    hub: Hub, source: str, key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values) as caught:
        fetch_file(source)
    if key == "hub.not_found":
        says(caught.value, searched=[f"on {hub.address}"])


def test_ambiguous_tables_of_a_role_are_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "served" / "data" / "train_more.csv").write_text("text,label\nc,1\n")
    tables = ["data/train-00000-of-00001.csv", "data/train_more.csv"]
    with refuses("hub.tables", found=tables, words=("train",)):
        fetch_file(f"hf://datasets/{NAME}")
