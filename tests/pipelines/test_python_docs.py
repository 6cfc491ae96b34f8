import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.pipelines.python_docs import MIN_SENTENCES, prose_paragraphs, write_python_docs


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_python_docs(tmp_path_factory.mktemp("docs"))


def documents(files: list[Path]) -> list[list[str]]:
    return [
        document.splitlines()
        for file in files
        for document in file.read_text(encoding="utf-8").split("\n\n")
    ]


def test_documentation_gives_enough_documents_to_train_a_small_model_on(corpus: list[Path]) -> None:
    found = documents(corpus)
    assert len(found) > 500
    assert sum(file.stat().st_size for file in corpus) > 1_000_000
    assert min(map(len, found)) >= MIN_SENTENCES


def test_text_has_a_sentence_per_line_and_a_blank_line_between_documents(
    corpus: list[Path],
) -> None:
    for file in corpus:
        text = file.read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert "\n\n\n" not in text
        assert all(line == line.strip() for line in text.splitlines())


def test_no_sentence_occurs_twice(corpus: list[Path]) -> None:
    sentences = [sentence.casefold() for document in documents(corpus) for sentence in document]
    assert len(sentences) == len(set(sentences))


def test_text_is_prose_without_markup(corpus: list[Path]) -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in corpus)
    for mark in (">>>", "::=", "``", ":func:", "=====", "-----"):
        assert mark not in text
    assert "The module pdb defines an interactive source code debugger for Python programs." in text


def test_another_process_of_one_python_gives_the_same_text(
    corpus: list[Path], tmp_path: Path
) -> None:
    script = (
        "from bert_jax.pipelines.python_docs import write_python_docs\n"
        f"write_python_docs({str(tmp_path)!r}, max_bytes=400_000)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-W", "error", "-c", script], env=environment, check=True)
    for file in corpus:
        again = (tmp_path / file.name).read_bytes()
        assert file.read_bytes().startswith(again)


def test_directory_holds_nothing_but_the_files_returned(corpus: list[Path]) -> None:
    assert sorted(corpus[0].parent.iterdir()) == sorted(corpus)


@pytest.mark.parametrize("max_bytes", [20_000, 80_000])
def test_max_bytes_ends_the_text_before_a_document(
    corpus: list[Path], tmp_path: Path, max_bytes: int
) -> None:
    files = write_python_docs(tmp_path, max_bytes=max_bytes)
    assert max_bytes / 2 < sum(file.stat().st_size for file in files) <= max_bytes
    some = documents(files)
    assert some == documents(corpus)[: len(some)]


def test_max_bytes_below_the_first_document_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_bytes: found 10"):
        write_python_docs(tmp_path, max_bytes=10)
    assert list(tmp_path.iterdir()) == []


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


def test_markup_code_tables_and_sessions_are_left_out_and_their_prose_kept() -> None:
    assert prose_paragraphs(MARKED_UP) == [
        "Returns the first of many things that look can find.",
        "A bullet is kept, without the mark before it.",
        "So is the second one of them.",
        "The end comes last, with post-mortem care for broken words",
    ]


def test_output_of_a_session_is_left_out_up_to_the_next_blank_line() -> None:
    text = "Say it.\n\n>>> say()\nThis line is what was said by it.\n\nThis line is prose again."
    assert prose_paragraphs(text) == ["This line is prose again."]


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=st.sampled_from("ab .\n*`\"'->=:[]1-#(),"), max_size=200))
def test_paragraphs_of_any_text_are_single_stripped_lines(text: str) -> None:
    for paragraph in prose_paragraphs(text):
        assert paragraph == " ".join(paragraph.split())
        assert paragraph
