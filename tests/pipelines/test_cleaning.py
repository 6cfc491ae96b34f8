"""Tests of the cleaning rules for single documents."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.pipelines.cleaning.contamination import build_index, load_index
from bert_jax.pipelines.cleaning.rules import DocumentRules, prose_lines
from bert_jax.pipelines.cleaning.words import ngram_hashes, word_hashes
from bert_jax.pipelines.section import BoilerplateSection, CleaningSection, ContaminationSection
from bert_jax.pipelines.tally import Tally
from tests.project import refuses

PROSE = "The quick brown fox jumps over the lazy dog."


def apply(lines: list[str], **changes: Any) -> tuple[list[str], Tally]:
    tally = Tally()
    rules = DocumentRules(CleaningSection(**changes), work="")
    return rules.apply(lines, identity="a:0", tally=tally), tally


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("1234 5678 90 12 34 56.", "letters"),
        ("Read more about it here and there", "sentence_end"),
        ("Home, sweet home.", "min_line_words"),
        ("Please enable JavaScript to see this fine page.", "line_phrases"),
        ("This web site uses cookies for its own ends.", "line_phrases"),
    ],
)
def test_lines_without_prose_are_dropped(line: str, rule: str) -> None:
    tally = Tally()
    lines = [PROSE, line, PROSE, "“He said that it was true.”", "他說這是真的，沒有人不相信。"]
    kept = prose_lines(lines, BoilerplateSection(), tally=tally)
    assert kept == [other for other in lines if other != line]
    assert tally.lines == {f"boilerplate.{rule}": 1}


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        ([PROSE, PROSE], "min_sentence_ends"),
        ([PROSE, "Lorem Ipsum dolor", PROSE, PROSE], "document_phrases"),
        ([PROSE, "if (x) {", PROSE, PROSE], "document_phrases"),
    ],
)
def test_documents_without_prose_are_dropped(lines: list[str], rule: str) -> None:
    tally = Tally()
    assert prose_lines(lines, BoilerplateSection(), tally=tally) is None
    assert tally.documents == {f"boilerplate.{rule}": 1}
    off = BoilerplateSection(**{name: type(value)() for name, value in BoilerplateSection()})
    assert prose_lines(lines, off, tally=Tally()) == lines


def test_repeated_lines_of_a_document_are_dropped() -> None:
    kept, tally = apply(["a", "b", "a", "c", "a"], duplicate_lines="document")
    assert kept == ["a", "b", "c"]
    assert tally.lines == {"duplicate_lines.document": 2}


@pytest.fixture
def filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_filters.py").write_text(
        "def has_the(text): return 'the' in text\n"
        "def code(text): return 'de' if 'und' in text else 'en'\n"
        "def number(text): return 3\n"
        "def fails(text): raise ValueError('no')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_filters", raising=False)
    return "my_filters"


def test_a_users_function_selects_documents(filters: str) -> None:
    kept, tally = apply(["on", "the mat"], language_filter=f"{filters}:has_the")
    assert kept == ["on", "the mat"]
    assert not tally.documents
    kept, tally = apply(["a mat"], language_filter=f"{filters}:has_the")
    assert not kept
    assert tally.documents == {"language_filter": 1}
    codes = {"language_filter": f"{filters}:code", "languages": ("de", "fr")}
    assert apply(["du und ich"], **codes)[0]
    assert not apply(["you and I"], **codes)[0]


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("code", "cleaning.no_languages", {"code": "en"}),
        ("number", "cleaning.filter_answer", {"found": "3"}),
        ("fails", "cleaning.filter_failed", {"error": "ValueError", "reason": "no"}),
    ],
)
def test_a_failing_filter_is_named(
    filters: str, name: str, key: str, values: dict[str, Any]
) -> None:
    with refuses(key, document="a:0", **values):
        apply(["text"], language_filter=f"{filters}:{name}")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("has_the", "function.spelling"),
        ("no_such_module:f", "function.import_failed"),
        ("my_filters:has_teh", "function.unknown"),
    ],
)
def test_a_missing_filter_is_named(filters: str, name: str, key: str) -> None:
    del filters
    with refuses(key, place="examples.cleaning.language_filter", found=name):
        apply(["text"], language_filter=name)


def evaluation_files(directory: Path) -> list[str]:
    (directory / "dev.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n"
        f"0\tshort one\t{PROSE} And it sleeps.\t1\n"
        "1\tNothing in here that anyone would have written anywhere else at all.\tx\t0\n"
        "2\ttoo short\tthis too\t0\n"
    )
    context = "A context of which every word is new to all of them here."
    questions = [{"question": "Does the quick brown fox jump over the lazy dog?"}]
    squad = {"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}
    (directory / "squad.json").write_text(json.dumps(squad))
    (directory / "lines.txt").write_text("one two\n\n" + "w " * 30 + "\n")
    return [str(directory / name) for name in ("dev.tsv", "squad.json", "lines.txt")]


@pytest.mark.parametrize("on_contaminated", ["report", "drop"])
def test_overlap_with_evaluation_files_is_found(tmp_path: Path, on_contaminated: str) -> None:
    section = ContaminationSection(
        files=tuple(evaluation_files(tmp_path)),
        ngram=8,
        on_contaminated=on_contaminated,  # pyright: ignore[reportArgumentType]
    )
    build_index(section, tmp_path)
    rules = DocumentRules(CleaningSection(contamination=section), work=str(tmp_path))
    tally = Tally()
    contaminated = [f"It says: {PROSE.upper()}", "And more."]
    clean = ["The quick brown fox jumps over the dog", "that lazy one. W w w w w w w."]
    left = [
        rules.apply(lines, identity=f"d{i}", tally=tally)
        for i, lines in enumerate((contaminated, clean, contaminated))
    ]
    drops = on_contaminated == "drop"
    assert left == [[] if drops else contaminated, clean, [] if drops else contaminated]
    assert tally.documents["contamination"] == (2 if drops else 0)
    assert tally.contaminated == ["d0", "d2"]
    tally.save(tmp_path)
    loaded = Tally.load(tmp_path)
    assert loaded == tally
    records = load_index(str(tmp_path)).report(loaded)
    assert [r.model_dump() for r in records] == [
        {"name": "dev.tsv", "examples": 3, "too_short": 1, "found": 1, "documents": 2},
        {"name": "lines.txt", "examples": 2, "too_short": 1, "found": 0, "documents": 0},
        {"name": "squad.json", "examples": 2, "too_short": 0, "found": 0, "documents": 0},
    ]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_overlaps_equal_a_word_by_word_search(data: st.DataObject) -> None:
    word_lists = st.lists(st.sampled_from("abcd"), max_size=14)
    examples = data.draw(st.lists(word_lists.map(" ".join), min_size=1, max_size=6))
    documents = data.draw(st.lists(word_lists.map(" ".join), max_size=6))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "e.txt").write_text("\n".join(e or "." for e in examples))
        section = ContaminationSection(files=(str(directory / "e.txt"),), ngram=4)
        build_index(section, directory)
        index, tally = load_index(name), Tally()

        def runs(text: str) -> set[tuple[str, ...]]:
            found = text.split()
            return {tuple(found[i : i + 4]) for i in range(len(found) - 3)}

        every = set().union(*map(runs, examples))
        for document in documents:
            hit = index.check(document, identity="x", tally=tally)
            assert hit == bool(runs(document) & every)
        (record,) = index.report(tally)
        seen = set().union(*map(runs, documents)) if documents else set()
        assert record.found == sum(bool(runs(example) & seen) for example in examples)
        assert record.too_short == sum(not runs(example) for example in examples)


def test_hashes_equal_the_recorded_ones() -> None:
    # Datasets depend on these hashes, so a change of them needs a new format version.
    assert word_hashes("the quick fox").tolist() == [
        3331141520948189790,
        3889497168071291402,
        13218999603221225746,
    ]
    assert ngram_hashes(word_hashes("the quick fox"), 3).tolist() == [8014588871704342394]
