"""Tests of several languages in one dataset: shares, pairs within a language, errors."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.config import parse_config
from bert_jax.data.dataset.provenance import MixtureSection, PairingKind, PairingSection
from bert_jax.data.dataset.reader import open_dataset
from bert_jax.pipelines.examples import make_examples
from bert_jax.pipelines.pairing import draw_passes, pair_documents
from bert_jax.pipelines.section import CleaningSection, ExamplesSection
from bert_jax.pipelines.shards.language_mixture import boosts, mixed_shares
from bert_jax.text import load_wordpiece
from tests.corpus import SPECIAL, hashes
from tests.corpus import section as plain_section
from tests.data.numbered import numbered, token_owner
from tests.project import refuses

DOCUMENTS = {"en": 540, "is": 20, "zh": 40}
WORDS = 30


def document(language: str, number: int) -> str:
    """Returns eight sentences of 4 to 9 words, each with the document's marker."""
    rng = np.random.default_rng((number, len(language), ord(language[0])))
    lines = []
    for _ in range(8):
        words = (f"{language}w{word}" for word in rng.integers(0, WORDS, rng.integers(3, 9)))
        lines.append(" ".join([f"{language}d{number}", *words]) + "\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a file per language, and a tokenizer of all their words."""
    root = tmp_path_factory.mktemp("languages")
    vocabulary = list(SPECIAL)
    for language, count in DOCUMENTS.items():
        text = "\n".join(document(language, number) for number in range(count))
        (root / f"{language}.txt").write_text(text)
        vocabulary += [f"{language}w{number}" for number in range(WORDS)]
        vocabulary += [f"{language}d{number}" for number in range(count)]
    (root / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    load_wordpiece(root / "vocab.txt", lower_case=True).save(root / "tokenizer")
    return root


def section(root: Path, output: Path, **changes: Any) -> ExamplesSection:
    values = {
        "input": {language: (f"{root}/{language}.txt",) for language in DOCUMENTS},
        "output": str(output),
        "validation_fraction": 0.1,
        "num_shards": 2,
    }
    return plain_section(root, **(values | changes))


def validation(directory: Path) -> dict[str, str]:
    return {name: held for name, held in hashes(directory).items() if "validation" in name}


def pieces(root: Path) -> list[str]:
    return (root / "vocab.txt").read_text().split("\n")


@pytest.mark.parametrize("kind", ["nsp", "full_sentences"])
@pytest.mark.parametrize("smoothing", [0.3, 0.7])
def test_languages_have_smoothed_shares_and_do_not_mix(
    corpus: Path, tmp_path: Path, kind: str, smoothing: float
) -> None:
    chances = {} if kind == "nsp" else {"short_seq_prob": 0.0}
    asked = section(
        corpus,
        tmp_path / "dataset",
        mixture=MixtureSection(smoothing=smoothing),
        kind=kind,
        cleaning=CleaningSection(duplicate_documents=True),  # sorts documents on disk
        **chances,
    )
    made = make_examples(asked)
    spelled = pieces(corpus)
    tokens, random = Counter[str](), Counter[str]()
    for split in ("train", "validation"):
        dataset = open_dataset(tmp_path / "dataset", split)
        for example in dataset.__getitems__(range(len(dataset))):
            words = [spelled[token] for token in example.input_ids.tolist()]
            [language] = {piece[:2] for piece in words if piece not in SPECIAL}
            if split == "train":
                tokens[language] += sum(piece not in SPECIAL for piece in words)
            if example.next_sentence_label:
                spans = words[: example.first_length], words[example.first_length :]
                homes = [{piece for piece in span if piece[2] == "d"} for span in spans]
                assert homes[0].isdisjoint(homes[1])
                random[language] += 1
    assert set(random) == (set(DOCUMENTS) if kind == "nsp" else set())
    languages = made.splits["train"].languages
    assert languages is not None
    sizes = {language: record.tokens for language, record in languages.items()}
    powers = {language: size**smoothing for language, size in sizes.items()}
    passes = 3 * sum(record.documents for record in languages.values())
    for language, record in languages.items():
        share = powers[language] / sum(powers.values())
        assert record.mixture_share == pytest.approx(share)
        assert record.share == pytest.approx(sizes[language] / sum(sizes.values()))
        assert record.passes == pytest.approx(3 * share / record.share)
        error = 4 * np.sqrt(share * (1 - share) / passes)  # each draw is a document
        assert abs(tokens[language] / tokens.total() - share) < error
        assert abs(record.example_tokens / made.splits["train"].tokens - share) < error
    # A mixture changes neither the total number of tokens nor the validation split.
    plain = make_examples(section(corpus, tmp_path / "plain", kind=kind, **chances))
    assert made.splits["train"].tokens == pytest.approx(plain.splits["train"].tokens, rel=0.02)
    assert validation(tmp_path / "dataset") == validation(tmp_path / "plain")


def test_each_language_is_split_by_its_own_rules(tmp_path: Path) -> None:
    texts = {
        # "3." is part of a date in German and ends a sentence in English.
        "de": ("Er kam am 3. Oktober an. Gut.", 2),
        "en": ("Er kam am 3. Oktober an. Gut.", 3),
        "ja": ("今日は天気がいい。公園に行こう！いいですか？", 3),
        "zh": ("今天天气很好。我们去公园吧！好吗？", 3),
    }
    for language, (text, _) in texts.items():
        (tmp_path / f"{language}.txt").write_text("\n\n".join([text] * 5), encoding="utf-8")
    characters = sorted({*"".join(text for text, _ in texts.values())} - {" "})
    vocabulary = [*SPECIAL, *characters, *(f"##{character}" for character in characters)]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    load_wordpiece(tmp_path / "vocab.txt", lower_case=False).save(tmp_path / "tokenizer")
    made = make_examples(
        plain_section(
            tmp_path,
            input={language: (f"{tmp_path}/{language}.txt",) for language in texts},
            layout="prose",
            validation_fraction=0.0,
            num_shards=1,
        )
    )
    assert made.corpus.sentences == 5 * sum(count for _, count in texts.values())
    assert made.corpus.unknown_rate == 0
    assert made.text.language == ("de", "en", "ja", "zh")


def test_validation_omits_languages_with_one_document(corpus: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    # This puts one of 20 Icelandic and one of 40 Chinese documents into the validation split.
    made = make_examples(
        section(corpus, tmp_path / "dataset", validation_fraction=0.05), progress=lines.append
    )
    assert [line for line in lines if "too few" in line] == [
        f"validation: skipping {name}: 1 document, too few for examples" for name in ("is", "zh")
    ]
    languages = made.splits["validation"].languages
    assert languages is not None
    left = languages["is"]
    assert (left.documents, left.examples, left.example_tokens, left.passes) == (1, 0, 0, 0)
    assert languages["en"].examples == made.splits["validation"].examples > 0


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({"english": "en"}, "language.code", {"found": "english"}),
        ({"false": "en"}, "input.norwegian", {}),
        ({"en": "en", "de": "en"}, "input.two_languages", {"languages": ["de", "en"]}),
        ({"en": "en", "de": "blank"}, "text.language_empty", {"language": "de"}),
        ({"en": "en", "de": "one"}, "text.language_small", {"language": "de", "found": 1}),
    ],
)
def test_unavailable_languages_are_named(
    corpus: Path, tmp_path: Path, changes: dict[str, str], key: str, values: dict[str, Any]
) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "one.txt").write_text("enw1 enw2\nenw3\n")
    (tmp_path / "en.txt").write_bytes((corpus / "en.txt").read_bytes())
    files = {language: (f"{tmp_path}/{name}.txt",) for language, name in changes.items()}
    changed = section(corpus, tmp_path / "dataset", input=files, validation_fraction=0.0)
    with refuses(key, place="input", **values):
        make_examples(changed)
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("override", "key", "found"),
    [
        ("mixture.smoothing=1.2", "setting.value", {"found": "1.2"}),
        ("language=zh", "input.language_twice", {"found": "zh"}),
        ("input=7", "input.form", {"found": "7"}),
        ("input=[a.txt]", "input.mixture", {"place": "test: examples.mixture"}),
    ],
)
def test_incompatible_settings_are_named(override: str, key: str, found: dict[str, Any]) -> None:
    values = {"input": {"en": ["a.txt"]}, "mixture": {}, "tokenizer": "t", "output": "o"}
    override = f"examples.{override}"
    found = {"place": f"override {override.partition('=')[0]}"} | found
    with refuses(key, **found):
        parse_config({"examples": values}, [override], source="test")


SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**12), min_size=1)


@given(SIZES, st.floats(0, 1))
def test_shares_equal_an_independent_computation(sizes: dict[str, int], s: float) -> None:
    # multilingual.md: "We exponentiate each probability by some factor S, and then re-normalize".
    total = sum(sizes.values())
    powered = [(size / total) ** s for size in sizes.values()]
    wanted = [each / sum(powered) for each in powered]
    shares = mixed_shares(sizes, smoothing=s)
    assert list(shares.values()) == pytest.approx(wanted)
    boost = boosts(sizes, smoothing=s)
    for language, size in sizes.items():
        assert boost[language] * size / total == pytest.approx(shares[language])
    assert sum(boost[language] * sizes[language] for language in sizes) == pytest.approx(total)


@pytest.mark.parametrize("kind", ["nsp", "sop", "full_sentences", "doc_sentences"])
def test_documents_are_used_once_per_pass(kind: PairingKind) -> None:
    documents = numbered([[4, 5, 6, 3] for _ in range(300)])
    section = PairingSection.model_validate(
        {"kind": kind, "max_seq_length": 512, "dupe_factor": 1, "short_seq_prob": 0.0}
    )
    made = list(pair_documents(documents, section, seed=5, boost=1.6))
    drawn = draw_passes(documents.keys, mean=1.6, seed=5)
    wanted = Counter(document for chosen in drawn for document in chosen)
    assert set(wanted.values()) == {1, 2}
    counted: Counter[int] = Counter()
    owner = token_owner(documents)
    for example in made:
        homes = [owner[start] for start, _ in example.token_ranges]
        spans = zip(homes, example.token_ranges, strict=True)
        if kind == "nsp" and example.next_sentence_label == 1:
            spans = list(spans)[:1]
            assert homes[0] != homes[1]
        for home, (start, stop) in spans:
            counted[home] += stop - start
    # No example is truncated here: a pass uses each of the 18 tokens once.
    assert counted == Counter({document: 18 * times for document, times in wanted.items()})
