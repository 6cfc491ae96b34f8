import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks.tokens.conll import read_conll
from tests.project import refuses


def write(directory: Path, text: str) -> Path:
    path = directory / "tags.txt"
    path.write_bytes(text.encode())
    return path


COLUMNS_OF_2003 = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

-DOCSTART- -X- O O
Peter NNP I-NP I-PER
# NN I-NP O
"""


def test_columns_of_2003_are_read_sentence_by_sentence(tmp_path: Path) -> None:
    file = read_conll(write(tmp_path, COLUMNS_OF_2003), labelled=True)
    assert file.sentences[0].labels is not None
    assert [sentence[:3] for sentence in file.sentences] == [
        (["EU", "rejects"], ["I-ORG", "O"], [3, 4]),
        (["Peter", "#"], ["I-PER", "O"], [7, 8]),
    ]


@pytest.mark.parametrize(("label", "first"), [(1, "NNP"), (2, "I-NP"), (-2, "I-NP"), (3, "I-ORG")])
def test_any_column_is_the_label(tmp_path: Path, label: int, first: str) -> None:
    path = write(tmp_path, COLUMNS_OF_2003)
    file = read_conll(path, labelled=True, label=label)
    assert file.sentences[0].labels is not None
    assert file.sentences[0].labels[0] == first


def test_a_document_line_of_any_width_divides_sentences(tmp_path: Path) -> None:
    text = "a O\n-DOCSTART-\nb O\n-DOCSTART- (1 EU -X-)\nc O"
    file = read_conll(write(tmp_path, text), labelled=True)
    assert [sentence.tokens for sentence in file.sentences] == [["a"], ["b"], ["c"]]


def test_line_ends_marks_and_odd_white_space_are_no_text(tmp_path: Path) -> None:
    text = "\ufeffa\u00a0b  O \r\n \t \r\n\u2028\tO\r\n\r\n\r\n"
    file = read_conll(write(tmp_path, text), labelled=True)
    assert [sentence.tokens for sentence in file.sentences] == [["a\u00a0b"], ["\u2028"]]
    assert file.sentences[1].lines == [3]


@pytest.mark.parametrize(
    ("text", "columns", "line", "key", "values"),
    [
        ("a O\n\nb X O\n", {}, 3, "columns", {"found": 3, "allowed": 2, "before": 1}),
        ("a O\nb\n", {}, 2, "columns", {"found": 1, "allowed": 2, "before": 1}),
        ("a O\n", {"label": 3}, 1, "column_missing", {"setting": "label_column", "columns": 2}),
        ("a O\n", {"token": 2}, 1, "column_missing", {"setting": "token_column", "columns": 2}),
        ("a\n", {}, 1, "same_column", {"token": 0, "label": -1, "columns": 1}),
        ("a\tO\n\tO\n", {"separator": "\t"}, 2, "empty_token", {}),
        ("a\tO\nb\t\n", {"separator": "\t"}, 2, "no_label", {}),
        ("", {}, None, "no_sentences", {}),
        ("\n-DOCSTART- O\n\n", {}, None, "no_sentences", {}),
    ],
)
def test_an_unreadable_line_is_named(
    tmp_path: Path,
    text: str,
    columns: dict[str, Any],
    line: int | None,
    key: str,
    values: dict[str, Any],
) -> None:
    path = write(tmp_path, text)
    place = str(path) if line is None else f"{path}: line {line}"
    with refuses(f"tokens.{key}", place=place, **values):
        read_conll(path, labelled=True, **columns)


GERMEVAL = """#\thttp://example.org/a [2010-01-01]
1\tEU\tB-ORG\tO
2\trejects\tO\tO

#\thttp://example.org/b [2010-01-02]
1\t#\tO\tB-PER
"""
MULTICONER = "# id 1-2 domain=train\nEU _ _ B-ORG\n\n\n# id 3-4 domain=train\n# _ _ O\na _ _ O\n"
CONLL_U = "# sent_id = 1\n# text = a b c d\n1 a X\n2 b Y\n\n# text = e f\n1 e X\n2 f Y\n"


REST = " _" * 6
UNIVERSAL = f"# text = zum\n1-2 zum _ _{REST}\n1 zu _ P{REST}\n2 dem _ D{REST}\n"


@pytest.mark.parametrize(
    ("text", "columns", "sentences", "comments"),
    [
        (GERMEVAL, {"token": 1, "label": 2}, ["EU rejects", "#"], 2),
        (GERMEVAL, {"token": 1, "separator": "\t"}, ["EU rejects", "#"], 2),
        (CONLL_U, {"token": 1}, ["a b", "e f"], 3),
        (UNIVERSAL, {"token": 1, "label": 3}, ["zu dem"], 1),
        ("###MEDLINE:95369245\n\na\tO\n\n###MEDLINE:95369246\n\nb\tO\n", {}, ["a", "b"], 2),
        ("#begin document (bc); 0\na X O\n\nb X O\n\n#end document\n", {}, ["a", "b"], 2),
        ("# O\n1 O\n\n# O\nb B-A\n", {}, ["# 1", "# b"], 0),
        ("# a b\n\n# O\nb O\n\n#tag O\n", {}, ["# b", "#tag"], 1),
    ],
)
def test_comments_are_not_tokens(
    tmp_path: Path, text: str, columns: dict[str, Any], sentences: list[str], comments: int
) -> None:
    file = read_conll(write(tmp_path, text), labelled=True, **columns)
    assert [" ".join(sentence.tokens) for sentence in file.sentences] == sentences
    assert file.comments == comments


def test_comments_of_the_same_width_begin_every_sentence(tmp_path: Path) -> None:
    file = read_conll(write(tmp_path, MULTICONER), labelled=True)
    assert file.names == {"B-ORG", "O"}


@pytest.mark.parametrize("labelled", [True, False])
def test_the_language_before_every_token_is_removed(tmp_path: Path, labelled: bool) -> None:
    text = "en:EU\tB-ORG\nen::\tO\n\nzh-min-nan:a:b\tO\n"  # PAN-X
    text = text if labelled else re.sub("\t.*", "", text)
    file = read_conll(write(tmp_path, text), labelled=labelled)
    tokens = [sentence.tokens for sentence in file.sentences]
    assert (tokens, file.languages) == ([["EU", ":"], ["a:b"]], ["en", "zh-min-nan"])
    with refuses("tokens.empty_token", place=f"{tmp_path / 'tags.txt'}: line 2"):
        read_conll(write(tmp_path, text.replace("en::", "en:")), labelled=labelled)
    file = read_conll(write(tmp_path, text.replace("en:EU", "EU")), labelled=labelled)
    assert (file.sentences[0].tokens, file.languages) == (["EU", "en::"], [])


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        (GERMEVAL, "index_column", {"column": 0, "width": 4, "following": 1}),
        ("1 a O\n1 b B-A\n2 c O\n", "index_column", {"column": 0, "width": 3, "following": 1}),
        ('{"tokens": ["a", "b"], "ner_tags": [0, 1]}\n', "rows", {"found": "JSON lines"}),
        ('\ufeff[{"tokens": ["a"], "ner_tags": [0]}]', "rows", {"found": "a JSON list"}),
        ("PAR1\x15", "rows", {"found": "Parquet"}),
        ("a,B-A\nb,O\n", "rows", {"found": "a CSV table"}),
    ],
)
def test_other_formats_are_named(
    tmp_path: Path, text: str, key: str, values: dict[str, Any]
) -> None:
    path = write(tmp_path, text)
    with refuses(f"tokens.{key}", place=path, **values):
        read_conll(path, labelled=True)


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("a *\nb (ORG)\nc (X(PERSON*\nd *))\n", 2, "(ORG)"),
        ("a -\nb -\nc (0\nd 0)|(1)\n", 3, "(0"),
    ],
)
def test_brackets_are_no_labels(tmp_path: Path, text: str, line: int, found: str) -> None:
    path = write(tmp_path, text)
    with refuses("tokens.brackets", place=f"{path}: line {line}", found=found):
        read_conll(path, labelled=True)
    # Tags of the Penn Treebank include brackets.
    read_conll(write(tmp_path, "( (\na DT\n) )\n"), labelled=True)


@pytest.mark.parametrize(
    "text",
    [
        "Sentence #,Word,POS,Tag\nSentence: 1,EU,NNP,B-ORG\n,rejects,VBZ,O\n",
        "tokens,ner_tags\n\"['EU', 'rejects']\",\"['B-ORG', 'O']\"\n",
        "word;tag\nEU;B-ORG\n",
    ],
)
def test_a_csv_is_named(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text).rename(tmp_path / "train.csv")
    for labelled in (False, True):
        with refuses("tokens.rows", place=path, found="a CSV table"):
            read_conll(path, labelled=labelled)


def test_a_header_is_not_a_token(tmp_path: Path) -> None:
    for text, separator in (("word\tTag\nEU\tB-ORG\n", None), ("token,ner_tag\nEU,O\n", ",")):
        path = write(tmp_path, text)
        with refuses("tokens.header", place=f"{path}: line 1"):
            read_conll(path, labelled=True, separator=separator)


@pytest.mark.parametrize(
    ("text", "columns", "stray"),
    [
        ("a\nb\n", {}, 0),
        ("a X\nb X\n", {"label": 2}, 0),
        ("a\tO\nb\t\n", {"separator": "\t"}, 1),
        ("a\t\nb\t\n", {"separator": "\t"}, 0),
    ],
)
def test_a_labelled_file_needs_a_label_on_every_token(
    tmp_path: Path, text: str, columns: dict[str, Any], stray: int
) -> None:
    file = read_conll(write(tmp_path, text), labelled=False, **columns)
    assert (file.sentences[0].tokens, file.sentences[0].labels) == (["a", "b"], None)
    assert file.stray_labels == stray


WORD = st.text(
    st.characters(exclude_characters="\t\n\r ", exclude_categories=["Cs"]), min_size=1, max_size=5
).filter(lambda word: not word.startswith(("-DOCSTART-", "\ufeff")))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4), min_size=1, max_size=4))
def test_written_columns_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]]
) -> None:
    text = "\n".join("".join(f"{a} {b}\n" for a, b in lines) for lines in sentences)
    path = write(tmp_path_factory.mktemp("conll"), text)
    file = read_conll(path, labelled=True)
    found = [
        list(zip(sentence.tokens, sentence.labels or [], strict=True))
        for sentence in file.sentences
    ]
    assert found == sentences
