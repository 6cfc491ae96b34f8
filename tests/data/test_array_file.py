from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.array_file import open_array


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10, dtype=np.uint16),
        np.arange(20, dtype=np.uint64).reshape(10, 2),
        np.zeros((10, 0), np.int64),
    ],
)
def test_stretches_of_a_file_are_those_of_the_array(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", array)
    with open_array(tmp_path / "a.npy") as file:
        assert len(file) == 10
        for start, stop in ((0, 10), (3, 7), (9, 10), (4, 4), (10, 10)):
            read = file.read(start, stop)
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array[start:stop])
        np.testing.assert_array_equal(file[2], array[2])


def test_rows_that_are_not_there_and_files_cut_short_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10, dtype=np.int64))
    with open_array(path) as file:
        for start, stop in ((0, 11), (-1, 3), (5, 4)):
            with pytest.raises(IndexError, match=f"rows {start} to {stop} of 10"):
                file.read(start, stop)
    path.write_bytes(path.read_bytes()[:-1])
    with open_array(path) as file:
        assert file.read(0, 9).tolist() == list(range(9))
        with pytest.raises(EOFError, match="15 bytes instead of 16"):
            file.read(8, 10)


def test_an_array_whose_rows_do_not_follow_each_other_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.ones((3, 2))))
    with pytest.raises(ValueError, match="Fortran"), open_array(tmp_path / "a.npy"):
        pass
