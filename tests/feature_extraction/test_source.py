"""Texts from every kind of file."""

from pathlib import Path

from bert_jax.feature_extraction.texts import TextColumns, read_texts


def test_lines_of_a_text_end_in_lf_or_cr_lf(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffw1 w2\r\n\nw3".encode())
    found = [(text.line, text.text) for text in read_texts(path, TextColumns())]
    assert found == [(1, "w1 w2"), (2, ""), (3, "w3")]
