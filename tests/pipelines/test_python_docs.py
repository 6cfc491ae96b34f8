from pathlib import Path

import pytest

from bert_jax.pipelines.python_docs import MIN_SENTENCES, prose_paragraphs, write_python_docs


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files with two thirds of the text: all chapters, then modules in order of their names."""
    return write_python_docs(tmp_path_factory.mktemp("docs"), max_bytes=1_050_000)


def documents(files: list[Path]) -> list[list[str]]:
    return [
        document.splitlines()
        for file in files
        for document in file.read_text(encoding="utf-8").split("\n\n")
    ]


def test_documentation_suffices_for_a_small_model(corpus: list[Path]) -> None:
    found = documents(corpus)
    assert len(found) > 500
    assert sum(file.stat().st_size for file in corpus) > 1_000_000
    assert min(map(len, found)) >= MIN_SENTENCES


def test_text_is_prose_without_markup(corpus: list[Path]) -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in corpus)
    for mark in (">>>", "::=", "``", ":func:", "=====", "-----"):
        assert mark not in text
    assert "The module pdb defines an interactive source code debugger for Python programs." in text


def test_max_bytes_ends_between_documents(corpus: list[Path], tmp_path: Path) -> None:
    files = write_python_docs(tmp_path, max_bytes=20_000)
    assert 10_000 < sum(file.stat().st_size for file in files) <= 20_000
    some = documents(files)
    assert some == documents(corpus)[: len(some)]


MARKED_UP = """Returns the *first* of ``many`` things that :func:`look` can find.

Signature
*********

    find(things, *, key=None) -> thing

>>> find([1, 2])
1

* A bullet is kept, without the mark before
  it.
* So is the **second** one of them [1].

+-------+-------+
| table | table |
+-------+-------+

   if_stmt ::= "if" expression

The "end" comes last, with post-
mortem care for broken words"""


def test_markup_code_and_tables_are_removed() -> None:
    assert prose_paragraphs(MARKED_UP) == [
        "Returns the first of many things that look can find.",
        "A bullet is kept, without the mark before it.",
        "So is the second one of them.",
        "The end comes last, with post-mortem care for broken words",
    ]
