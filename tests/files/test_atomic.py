import errno
from pathlib import Path

import pytest

from bert_jax.files.atomic import disk_errors, new_directory, write_whole
from tests.project import refuses


def test_writing_a_file_creates_its_directory_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_whole(path, "é")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_worker_does_not_recreate_a_removed_directory(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "a.txt"
    with refuses("file.unwritable", place=path, reason="No such file or directory"):
        write_whole(path, "x", make_parent=False)
    assert not any(tmp_path.iterdir())


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    path = tmp_path / "file" / "a.txt"
    with refuses("file.unwritable", place=path):
        write_whole(path, "x")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), RuntimeError("write: No space left on device")]
)
def test_a_full_disk_is_one_line(error: Exception) -> None:
    with refuses("disk.full", place="a", reason="no space left on device"), disk_errors("a"):
        raise error


def test_only_a_complete_directory_replaces_the_old_one(tmp_path: Path) -> None:
    def ours(_: Path) -> list[str]:
        return ["*"]

    target = tmp_path / "d"
    with new_directory(target, force=False, ours=ours) as directory:
        (directory / "first").touch()
        assert not target.exists()
    with (
        refuses("output.exists", place=target),
        new_directory(target, force=False, ours=ours),
    ):
        pass
    with (
        pytest.raises(KeyError),
        new_directory(target, force=True, ours=ours) as directory,
    ):
        raise KeyError
    assert [path.name for path in target.iterdir()] == ["first"]
    with new_directory(target, force=True, ours=ours) as directory:
        (directory / "second").touch()
    assert [path.name for path in target.iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
