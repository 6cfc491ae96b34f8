"""Texts from every kind of file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.errors import UserError
from bert_jax.feature_extraction.texts import InputText, TextColumns, read_texts


def test_a_parquet_is_read_as_any_table(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": ["w1", "w2"], "b": ["w3", ""], "c": [1, 0]}), path)
    found = list(read_texts(path, TextColumns("a", "b", "c")))
    assert found == [InputText(1, "w1", "w3", "1"), InputText(2, "w2", "", "0")]
    with pytest.raises(UserError, match=r"allowed: a, b, c \(the schema of .*did you mean"):
        list(read_texts(path, TextColumns("aa")))
    with pytest.raises(UserError, match=r't.parquet: row 1: "c" found int, allowed: text'):
        list(read_texts(path, TextColumns("c")))


def test_lines_of_a_text_end_in_lf_or_cr_lf(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffw1 w2\r\n\nw3".encode())
    found = [(text.line, text.text) for text in read_texts(path, TextColumns())]
    assert found == [(1, "w1 w2"), (2, ""), (3, "w3")]
