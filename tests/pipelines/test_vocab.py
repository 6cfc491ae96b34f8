"""Vocabularies are trained on real text, at the exact size, with BERT's layout."""

import itertools
import pydoc_data.topics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.dataset.recipe import MixtureSection
from bert_jax.errors import UserError
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import reserved_pieces

TOPICS = list(pydoc_data.topics.topics.values())
KINDS = [
    {"algorithm": "wordpiece"},
    {"algorithm": "unigram"},
    {"algorithm": "bpe"},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "topics.txt"
    path.write_text("\n".join([*TOPICS, "Élan naïve 世界 中文 ΟΔΟΣ [SEP] "] * 2), encoding="utf-8")
    return path


def train(corpus: Path, output: Path, **settings: Any) -> Tokenizer:
    defaults = {"size": 1200, "character_coverage": 1.0, "max_bytes": 300_000}
    section = VocabSection(input=(str(corpus),), output=str(output), **(defaults | settings))
    return train_vocab(section)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_size_is_exact_and_the_layout_is_berts(
    kind: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    tokenizer = train(corpus, tmp_path / "tokenizer", **kind)
    assert tokenizer.vocab_size == 1200
    assert tokenizer.special == (0, 100, 101, 102, 103)
    pieces = tokenizer.pieces(range(1200))
    assert len(set(pieces)) == 1200
    assert pieces[:104] == reserved_pieces(99)
    assert not any(piece.startswith("[unused") for piece in pieces[104:])
    assert load_tokenizer(tmp_path / "tokenizer").hash == tokenizer.hash


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_corpus_and_settings_give_the_same_tokenizer(
    kind: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    hashes = {train(corpus, tmp_path / str(run), **kind).hash for run in range(3)}
    assert len(hashes) == 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("unused_slots", [0, 99])
def test_a_size_is_padded_to_128_with_unused_slots(
    kind: dict[str, Any], unused_slots: int, corpus: Path, tmp_path: Path
) -> None:
    tokenizer = train(corpus, tmp_path, pad_to_128=True, unused_slots=unused_slots, **kind)
    assert tokenizer.vocab_size == 1280
    slots = [p for p in tokenizer.pieces(range(1280)) if p.startswith("[unused")]
    assert slots == [f"[unused{number}]" for number in range(unused_slots + 80)]
    assert tokenizer.special.pad == 0
    assert tokenizer.special.unk == min(unused_slots + 80, 99) + 1


def test_casing_and_accents_are_kept_where_asked(corpus: Path, tmp_path: Path) -> None:
    tokenizer = train(corpus, tmp_path, lower_case=False, max_bytes=100_000_000)
    pieces = set(tokenizer.pieces(range(tokenizer.vocab_size)))
    assert {"The", "É", "ï", "##ï", "Σ"} <= pieces
    assert "世" in pieces
    assert "##世" not in pieces  # it is always a word by itself
    assert "##." not in pieces
    joined = train(corpus, tmp_path, chinese=False, max_bytes=100_000_000)
    assert "##世" in joined.pieces(range(joined.vocab_size))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_corpus_too_small_for_the_size_is_an_error_that_tells_the_most(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    small = tmp_path / "small.txt"
    small.write_text("\n".join(TOPICS[0].splitlines()[:40]))
    with pytest.raises(UserError, match=r"vocab\.size: found 5000, allowed: at most \d+") as caught:
        train(small, tmp_path / "out", size=5000, **kind)
    assert not (tmp_path / "out").exists()
    most = int(str(caught.value).split("at most ")[1].split(",")[0])
    assert train(small, tmp_path / "out", size=most, **kind).vocab_size == most


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_too_small_a_size_for_the_characters_tells_the_least(
    kind: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"vocab\.size: found 110, allowed: at least \d+") as caught:
        train(corpus, tmp_path / "out", size=110, **kind)
    least = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert train(corpus, tmp_path / "out", size=least, **kind).vocab_size == least


def test_marks_that_the_libraries_keep_for_themselves_are_ordinary_text(tmp_path: Path) -> None:
    corpus = tmp_path / "marks.txt"
    corpus.write_text("lower▁case ▁▁ ▅ <unk> <s> ##lower [UNK] case\n" * 20, encoding="utf-8")
    tokenizer = train(corpus, tmp_path / "out", size=146)
    for text in corpus.read_text(encoding="utf-8").splitlines():
        ids = tokenizer.encode(text)
        assert tokenizer.special.unk not in ids
        spelt = "".join(piece.removeprefix("##") for piece in tokenizer.pieces(ids))
        assert spelt.replace("#", "") == text.lower().replace(" ", "").replace("#", "")


def words_of(language: str) -> list[str]:
    """Words that no other language has."""
    letters = {"aa": "abcdef", "bb": "ghijkl"}[language]
    return ["".join(word) for word in itertools.permutations(letters, 4)]


def pieces_by_language(tokenizer: Tokenizer) -> Counter[str]:
    pieces = tokenizer.pieces(range(104, tokenizer.vocab_size))
    return Counter(
        "aa" if set("abcdef") & set(piece) else "bb"
        for piece in pieces
        if not piece.startswith("[")
    )


def test_a_smaller_language_gets_more_pieces_the_more_its_share_is_smoothed(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    files = {}
    for language, lines in (("aa", 1900), ("bb", 100)):
        path = tmp_path / f"{language}.txt"
        text = (" ".join(rng.choice(words_of(language), 8)) + "\n" for _ in range(lines))
        path.write_text("".join(text))
        files[language] = (str(path),)
    found = []
    for smoothing in (None, 1.0, 0.5, 0.0):
        section = VocabSection(
            input=files,
            mixture=None if smoothing is None else MixtureSection(smoothing=smoothing),
            output=str(tmp_path / f"{smoothing}"),
            size=400,
        )
        found.append(pieces_by_language(train_vocab(section))["bb"])
    assert found[0] == found[1]
    assert found[1] < found[2] < found[3]


@pytest.mark.parametrize(
    ("text", "settings", "warned"),
    [
        ("Tiếng Việt có dấu ở nhiều chữ cái\n", {}, True),
        ("한국어 문장은 글자로 나뉩니다\n", {}, True),
        ("Tiếng Việt có dấu ở nhiều chữ cái\n", {"strip_accents": False}, False),
        ("Über den Wolken muss die Freiheit wohl grenzenlos sein\n", {}, False),
    ],
)
def test_a_text_whose_letters_need_their_marks_is_named(
    tmp_path: Path, text: str, settings: dict[str, Any], warned: bool
) -> None:
    (tmp_path / "text.txt").write_text(text * 50, encoding="utf-8")
    section = VocabSection(
        input=(str(tmp_path / "text.txt"),),
        output=str(tmp_path / "tokenizer"),
        size=128,
        unused_slots=0,
        pad_to_128=True,
        **settings,
    )
    lines: list[str] = []
    train_vocab(section, progress=lines.append)
    assert [("strip_accents: false" in line) for line in lines] == [True] * warned


def test_an_empty_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n\t\n")
    with pytest.raises(UserError, match=r"blank\.txt"):
        train(tmp_path / "blank.txt", tmp_path / "out")
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        train(tmp_path / "nowhere.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
