import errno
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.files.atomic import disk_errors, new_directory, write_whole
from tests.project import refuses


def test_writing_a_file_creates_its_directory_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    write_whole(path, "é")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_worker_does_not_recreate_a_removed_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone/a\.txt: cannot be written \(No such file"):
        write_whole(tmp_path / "gone" / "a.txt", "x", make_parent=False)
    assert not any(tmp_path.iterdir())


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/a\.txt: cannot be written \("):
        write_whole(tmp_path / "file" / "a.txt", "x")


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), RuntimeError("write: No space left on device")]
)
def test_a_full_disk_is_one_line(error: Exception) -> None:
    said = r"^a: no space left on device while writing"
    with pytest.raises(UserError, match=said), disk_errors("a"):
        raise error


def test_only_a_complete_directory_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "d"
    with new_directory(target, force=False) as directory:
        (directory / "first").touch()
        assert not target.exists()
    with refuses("output.exists", place=target), new_directory(target, force=False):
        pass
    with pytest.raises(KeyError), new_directory(target, force=True) as directory:
        raise KeyError
    assert [path.name for path in target.iterdir()] == ["first"]
    with new_directory(target, force=True) as directory:
        (directory / "second").touch()
    assert [path.name for path in target.iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
