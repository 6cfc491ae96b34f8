"""WordPiece ids equal those of the 2018 release. A saved directory is self-contained."""

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from bert_jax.text import Tokenizer, load_tokenizer, load_wordpiece
from bert_jax.text.vocabulary import reserved_pieces
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.project import refuses
from tests.text.reference_wordpiece import tokenize
from tests.text.test_basic_tokenizer import HOT, texts

ENGLISH = [
    "un", "aff", "able", "the", "elan", "naive", "don", "stop", "##aff", "##able", "##ing", "##s",
    "mask", "sep", "'", ".", ",", "[", "]", "#", "##x",
]  # fmt: skip
CASED = ["Un", "The", "Élan", "élan", "É", "naïve", "El", "##ï", "##ve", "##Σ", "Σ", "ß"]
CHINESE = ["中", "文", "世", "界", "##中", "〇", "ㄱ", "。", "，", "カ", "##タ", "한", "##ᄀ"]
GREEK = ["οδος", "οδοσ", "ο", "##δος", "##σ", "##ς", "σ", "ς", "ας", "😀", "##😀", "##́", "é"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEZ0123456789"]
VOCABULARY = list(
    dict.fromkeys(
        [*reserved_pieces(99), *ENGLISH, *CASED, *CHINESE, *GREEK, *LETTERS]
        + [f"##{letter}" for letter in LETTERS]
        + [c for c in HOT if c.isprintable() and not c.isspace()]
    )
)
VOCABULARY_SET = frozenset(VOCABULARY)
SETTINGS: dict[str, Any] = {
    "uncased": {"lower_case": True},
    "cased": {"lower_case": False},
    "accents kept": {"lower_case": True, "strip_accents": False},
    "ideographs joined": {"lower_case": False, "chinese": False},
}
TOKENIZERS = {name: WordPieceTokenizer(VOCABULARY, **rules) for name, rules in SETTINGS.items()}
ENCODABLE = st.lists(
    st.one_of(st.sampled_from(ENGLISH + CASED + CHINESE + GREEK), texts), max_size=8
).map("".join)


@pytest.mark.parametrize("kind", SETTINGS)
@settings(deadline=None, max_examples=300)
@given(text=ENCODABLE)
@example(text="unaffable ΟΔΟΣ ὀδός [SEP] ##able 한ᄀ 中文Élan\U0001f600\U0001f600 \ud800x")
@example(text="a" * 200 + " " + "a" * 201 + " é" + "é" * 199)
def test_pieces_equal_the_releases_on_any_text(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    expected = tokenize(text, VOCABULARY_SET, **SETTINGS[kind])
    assert tokenizer.pieces(tokenizer.encode(text)) == expected
    assert tokenizer.encode_batch([text, text]) == [tokenizer.encode(text)] * 2


def test_special_pieces_in_the_text_are_ordinary_text() -> None:
    tokenizer = TOKENIZERS["uncased"]
    ids = tokenizer.encode("[SEP] [MASK]")
    assert tokenizer.pieces(ids) == ["[", "sep", "]", "[", "mask", "]"]
    assert not set(ids) & set(tokenizer.special)
    assert tokenizer.encode("a" * 1_000_000) == [tokenizer.special.unk]


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_saved_tokenizer_opens_unchanged(kind: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[kind]
    tokenizer.save(tmp_path / "a" / "b")
    opened = load_tokenizer(tmp_path / "a" / "b")
    assert isinstance(opened, Tokenizer)
    assert opened.hash == tokenizer.hash
    assert opened.special == tokenizer.special
    text = "Élan unaffable 中文 ΟΔΟΣ"
    assert opened.encode(text) == tokenizer.encode(text)
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_hashes_are_equal_only_for_equal_behaviour() -> None:
    hashes = {tokenizer.hash for tokenizer in TOKENIZERS.values()}
    assert len(hashes) == len(TOKENIZERS)
    explicit = WordPieceTokenizer(VOCABULARY, lower_case=True, strip_accents=True)
    assert explicit.hash == TOKENIZERS["uncased"].hash
    swapped = [*VOCABULARY[:-2], VOCABULARY[-1], VOCABULARY[-2]]
    assert WordPieceTokenizer(swapped, lower_case=True).hash not in hashes


def test_hugging_face_opens_the_directory_and_agrees(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = TOKENIZERS["uncased"]
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for topic in list(pydoc_data.topics.topics.values())[:5]:
        assert theirs.encode(topic, add_special_tokens=False) == tokenizer.encode(topic)
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 103)


def test_the_releases_bare_vocabulary_opens_with_stated_casing(tmp_path: Path) -> None:
    # The Chinese vocabulary has U+2028; files written on Windows end lines in \r\n.
    pieces = [*reserved_pieces(0), "\u2028", "##\u2028", "the", "The"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*pieces, ""]).encode())
    tokenizer = load_wordpiece(tmp_path, lower_case=False)
    assert tokenizer.vocab_size == len(pieces)
    assert tokenizer.encode("The the\u2028the") == [8, 7, 7]
    assert load_wordpiece(tmp_path / "vocab.txt", lower_case=True).encode("The") == [7]
    with refuses("tokenizer.casing_unknown", place=tmp_path):
        load_tokenizer(tmp_path)


def test_a_hugging_face_directory_without_our_type_opens(tmp_path: Path) -> None:
    TOKENIZERS["cased"].save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "model_max_length": 5}'
    )
    theirs = WordPieceTokenizer(VOCABULARY, **SETTINGS["cased"], max_word_characters=100)
    assert load_tokenizer(tmp_path).hash == theirs.hash


GOOD = "\n".join(VOCABULARY) + "\n"


@pytest.mark.parametrize(
    ("content", "key", "place", "values"),
    [
        (
            GOOD.replace("[MASK]\n", "").encode(),
            "vocabulary.special_missing",
            "vocab.txt",
            {"missing": ["[MASK]"]},
        ),
        (b"", "vocabulary.empty", "vocab.txt", {}),
        (
            f"{GOOD}the\n".encode(),
            "vocabulary.piece_twice",
            "vocab.txt",
            {"piece": "the", "second": len(VOCABULARY) + 1},
        ),
        (f"[PAD]\n\n{GOOD}".encode(), "vocabulary.blank_line", "vocab.txt: line 2", {}),
        (f"[PAD]\n ab\n{GOOD}".encode(), "vocabulary.white_space", "vocab.txt: line 2", {}),
        (f"{GOOD}extra\n".encode(), "tokenizer.hash", "tokenizer_config.json: hash", {}),
    ],
)
def test_a_damaged_vocabulary_is_named(
    content: bytes, key: str, place: str, values: dict[str, Any], tmp_path: Path
) -> None:
    TOKENIZERS["uncased"].save(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(content)
    with refuses(key, place=f"{tmp_path}/{place}", **values):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"[PAD]\nab\xff", None])
def test_an_unreadable_vocabulary_is_named(content: bytes | None, tmp_path: Path) -> None:
    TOKENIZERS["uncased"].save(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    if content is not None:
        (tmp_path / "vocab.txt").write_bytes(content)
    path = f"{tmp_path}/vocab.txt"
    missing = content is None
    place = path if missing else f"{path}: offset 8"
    with refuses("file.missing" if missing else "file.not_utf8", place=place):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "values"),
    [
        ("do_lower_case", "yes", {"found": '"yes"', "allowed": "true, false, null"}),
        ("do_lower_case", None, {"found": "null", "allowed": "true, false"}),
        ("type", "wordpeice", {"found": '"wordpeice"', "hint": '; did you mean "wordpiece"?'}),
    ],
)
def test_a_wrong_setting_is_named(
    name: str, value: object, values: dict[str, Any], tmp_path: Path
) -> None:
    path = changed_settings(tmp_path, {name: value})
    with refuses("tokenizer.setting", place=f"{path}: {name}", **values):
        load_tokenizer(tmp_path)


def test_settings_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    path = changed_settings(tmp_path, {"do_lower_case": False})
    with refuses("tokenizer.hash", place=f"{path}: hash", vocabulary="vocab.txt"):
        load_tokenizer(tmp_path)
    changed_settings(tmp_path, {"type": "sentencepiece"})
    with refuses("file.missing", place=tmp_path / "spiece.model"):
        load_tokenizer(tmp_path)


def changed_settings(directory: Path, changes: dict[str, object]) -> Path:
    TOKENIZERS["uncased"].save(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refuses("file.unwritable", place=tmp_path / "file"):
        TOKENIZERS["uncased"].save(tmp_path / "file")
