"""Tests of vocabularies: exact size, BERT's layout, sampling."""

import functools
import itertools
import pydoc_data.topics
import re
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bert_jax.data.dataset.provenance import MixtureSection
from bert_jax.pipelines.vocabulary.sample import measure, sample_lines, sample_mixture
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.text import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import reserved_pieces
from tests.project import refuses

TOPICS = list(pydoc_data.topics.topics.values())
KINDS = [{"algorithm": name} for name in ("wordpiece", "unigram", "bpe", "byte_bpe")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "topics.txt"
    path.write_text("\n".join([*TOPICS, "Élan naïve 世界 中文 ΟΔΟΣ [SEP] "] * 2), encoding="utf-8")
    return path


def train(corpus: Path, output: Path, **changes: Any) -> Tokenizer:
    defaults = {"size": 1200, "max_bytes": 150_000}
    if changes.get("algorithm") != "byte_bpe":
        defaults["character_coverage"] = 1.0
    section = VocabSection(input=(str(corpus),), output=str(output), **(defaults | changes))
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
    assert train(corpus, tmp_path / "again", **kind).hash == tokenizer.hash


@pytest.mark.parametrize(("kind", "unused_slots"), [*((k, 0) for k in KINDS), (KINDS[0], 99)])
def test_a_size_is_padded_to_128_with_unused_slots(
    kind: dict[str, Any], unused_slots: int, corpus: Path, tmp_path: Path
) -> None:
    tokenizer = train(corpus, tmp_path, pad_to_128=True, unused_slots=unused_slots, **kind)
    assert tokenizer.vocab_size == 1280
    slots = [p for p in tokenizer.pieces(range(1280)) if p.startswith("[unused")]
    assert slots == [f"[unused{number}]" for number in range(unused_slots + 80)]
    assert tokenizer.special.pad == 0
    assert tokenizer.special.unk == min(unused_slots + 80, 99) + 1


def test_casing_and_accents_can_be_kept(corpus: Path, tmp_path: Path) -> None:
    tokenizer = train(corpus, tmp_path, lower_case=False, max_bytes=100_000_000)
    pieces = set(tokenizer.pieces(range(tokenizer.vocab_size)))
    assert {"The", "É", "ï", "##ï", "Σ"} <= pieces
    assert "世" in pieces
    assert "##世" not in pieces  # a CJK character is always a whole word
    assert "##." not in pieces
    joined = train(corpus, tmp_path, chinese=False, max_bytes=100_000_000)
    assert "##世" in joined.pieces(range(joined.vocab_size))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("size", "key"), [(5000, "vocab.too_large"), (110, "vocab.too_small")])
def test_an_impossible_size_names_the_bound(
    kind: dict[str, Any], size: int, key: str, tmp_path: Path
) -> None:
    small = tmp_path / "small.txt"
    small.write_text("\n".join(TOPICS[0].splitlines()[:40]))
    with refuses(key, place="size", found=size) as caught:
        train(small, tmp_path / "out", size=size, **kind)
    assert not (tmp_path / "out").exists()
    found = re.search(r"at (?:most|least) ([\d,]+)", caught.value.message)
    assert found is not None
    bound = int(found[1].replace(",", ""))
    assert train(small, tmp_path / "out", size=bound, **kind).vocab_size == bound


def test_the_libraries_reserved_marks_are_plain_text(tmp_path: Path) -> None:
    corpus = tmp_path / "marks.txt"
    corpus.write_text("lower▁case ▁▁ ▅ <unk> <s> ##lower [UNK] case\n" * 20, encoding="utf-8")
    tokenizer = train(corpus, tmp_path / "out", size=146)
    for text in corpus.read_text(encoding="utf-8").splitlines():
        ids = tokenizer.encode(text)
        assert tokenizer.special.unk not in ids
        spelt = "".join(piece.removeprefix("##") for piece in tokenizer.pieces(ids))
        assert spelt.replace("#", "") == text.lower().replace(" ", "").replace("#", "")


def test_smoothing_gives_small_languages_more_pieces(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = {}
    for language, letters, lines in (("aa", "abcdef", 1900), ("bb", "ghijkl", 100)):
        words = ["".join(word) for word in itertools.permutations(letters, 4)]
        path = tmp_path / f"{language}.txt"
        path.write_text("".join(" ".join(rng.choice(words, 8)) + "\n" for _ in range(lines)))
        files[language] = (str(path),)
    found = []
    for smoothing in (None, 1.0, 0.5, 0.0):
        section = VocabSection(
            input=files,
            mixture=None if smoothing is None else MixtureSection(smoothing=smoothing),
            output=str(tmp_path / f"{smoothing}"),
            size=400,
        )
        pieces = train_vocab(section).pieces(range(104, 400))
        found.append(sum(not set("ghijkl").isdisjoint(piece) for piece in pieces))
    assert found[0] == found[1]
    assert found[1] < found[2] < found[3]


@pytest.mark.parametrize(
    ("text", "changes", "warned"),
    [
        ("Tiếng Việt có dấu ở nhiều chữ cái\n", {}, True),
        ("한국어 문장은 글자로 나뉩니다\n", {}, True),
        ("Tiếng Việt có dấu ở nhiều chữ cái\n", {"strip_accents": False}, False),
        ("Über den Wolken muss die Freiheit wohl grenzenlos sein\n", {}, False),
    ],
)
def test_stripping_needed_marks_is_named(
    tmp_path: Path, text: str, changes: dict[str, Any], warned: bool
) -> None:
    (tmp_path / "text.txt").write_text(text * 50, encoding="utf-8")
    section = VocabSection(
        input=(str(tmp_path / "text.txt"),),
        output=str(tmp_path / "tokenizer"),
        size=128,
        unused_slots=0,
        pad_to_128=True,
        **changes,
    )
    lines: list[str] = []
    train_vocab(section, progress=lines.append)
    assert [("strip_accents: false" in line) for line in lines] == [True] * warned


def test_an_empty_corpus_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n\t\n")
    with refuses("vocab.no_text", place="input", files=(str(tmp_path / "blank.txt"),)):
        train(tmp_path / "blank.txt", tmp_path / "out")
    with refuses("input.no_file", place="input", found=tmp_path / "nowhere.txt"):
        train(tmp_path / "nowhere.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_small_corpus_is_kept_whole_and_in_order() -> None:
    lines = ["b", "", "a", "  ", "c" * 5000, "é"]
    sample = sample_lines(lines, max_lines=10, max_bytes=10_000, seed=3)
    assert sample == ["b", "a", "c" * 2048, "c" * 2048, "c" * 904, "é"]


def test_every_line_is_equally_likely() -> None:
    lines = [str(number) * (1 + number % 3) for number in range(40)]
    seen: Counter[str] = Counter()
    runs = 2000
    for seed in range(runs):
        sample = sample_lines(lines, max_lines=10, max_bytes=10_000, seed=seed)
        assert len(sample) == 10
        assert sample == [line for line in lines if line in set(sample)]
        seen.update(sample)
    # Binomial(2000, 1/4) has standard deviation 19.4; the bound is five of them.
    assert all(abs(seen[line] - runs / 4) < 97 for line in lines)


@settings(deadline=None, max_examples=50)
@given(
    lines=st.lists(st.text(alphabet="aé中", min_size=1, max_size=30), max_size=50),
    max_bytes=st.integers(1, 400),
    max_lines=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_the_sample_depends_on_the_seed_and_keeps_bounds(
    lines: list[str], max_bytes: int, max_lines: int, seed: int
) -> None:
    sample = sample_lines(lines, max_lines=max_lines, max_bytes=max_bytes, seed=seed)
    assert len(sample) <= max_lines
    assert sum(len(line.encode()) for line in sample) <= max_bytes
    assert sample == sample_lines(lines, max_lines=max_lines, max_bytes=max_bytes, seed=seed)


LANGUAGES = {
    "en": [f"english line {number}" for number in range(9000)],
    "is": [f"íslenska {number}" for number in range(300)],
    "zh": [f"中文的第{number}行文字在这里" for number in range(700)],
}


def mixed(languages: dict[str, list[str]], **changes: Any) -> list[str]:
    openers = {language: functools.partial(iter, lines) for language, lines in languages.items()}
    bounds = {"max_lines": 10**9, "max_bytes": 10**9, "seed": 0}
    return sample_mixture(openers, **(bounds | changes))


@pytest.mark.parametrize("bounds", [{}, {"max_bytes": 50_000}, {"max_lines": 3000}], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 0.7, 1.0])
def test_a_mixture_has_smoothed_shares(bounds: dict[str, int], smoothing: float) -> None:
    sizes = {language: measure(lines).bytes for language, lines in LANGUAGES.items()}
    powers = {language: size**smoothing for language, size in sizes.items()}
    wanted = {language: power / sum(powers.values()) for language, power in powers.items()}
    sample = mixed(LANGUAGES, smoothing=smoothing, **bounds)
    held = measure(sample)
    for language, lines in LANGUAGES.items():
        own = measure(line for line in sample if line[:3] == lines[0][:3])
        assert own.bytes / held.bytes == pytest.approx(wanted[language], abs=0.004)
    assert held.parts <= bounds.get("max_lines", 10**9)
    assert held.bytes <= bounds.get("max_bytes", sum(sizes.values()))
    # The sample reaches a limit or the size of the corpus.
    full = held.bytes / min(sum(sizes.values()), bounds.get("max_bytes", 10**9))
    assert max(full, held.parts / bounds.get("max_lines", 10**9)) > 0.99


def test_a_language_without_text_is_named() -> None:
    with refuses("vocab.language_empty", place="input", languages=["is"]):
        mixed(LANGUAGES | {"is": ["", " "]}, smoothing=0.7)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_full_disk_leaves_the_old_tokenizer_or_nothing(
    kind: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    old = train(corpus, tmp_path / "old", **kind)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for output in (tmp_path / "deep" / "new", tmp_path / "old"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # writes fail as on a full disk
        try:
            with refuses("disk.full", reason="file too large") as caught:
                train(corpus, output, **kind | {"size": 1100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "kept" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert load_tokenizer(tmp_path / "old").hash == old.hash
