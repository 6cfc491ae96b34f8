import errno
import os
from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.pipelines.examples import make_examples
from tests.corpus import section, write_corpus, write_tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A directory with 40 documents in one file and a tokenizer."""
    write_corpus(tmp_path / "text.txt", documents=range(40))
    write_tokenizer(tmp_path / "tokenizer")
    return tmp_path


@pytest.mark.parametrize("place", ["file/dataset", "file/deeper/dataset"])
def test_an_output_that_cannot_be_made_is_named(corpus: Path, place: str) -> None:
    (corpus / "file").write_text("in the way")
    with pytest.raises(UserError, match=rf"{place}: cannot be written \((File exists|Not a dir)"):
        make_examples(section(corpus, output=str(corpus / place)))


def test_a_read_only_place_is_named(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("filelock._unix.os.open", refuse)
    with pytest.raises(UserError, match=r"dataset: cannot be written \(Read-only file system\)"):
        make_examples(section(corpus))
