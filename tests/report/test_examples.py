from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bert_jax.data.dataset.provenance import (
    CorpusRecord,
    LanguageRecord,
    PairingSection,
    PairsRecord,
    Provenance,
    SplitRecord,
    TextRecord,
)
from bert_jax.data.dataset.schema import Example
from bert_jax.data.loader.mask_share import MaskShare
from bert_jax.data.rows.masking import MaskedExample, MaskingSection
from bert_jax.report.dataset.page import render
from bert_jax.report.dataset.sample import Piece, Sample, SampleExample, sample_example
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.report.strict_html import read, rows

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "bark", "##ed", "cat", "<b>&"]
TOKENIZER = WordPieceTokenizer(PIECES, lower_case=True, strip_accents=None, chinese=True)
CLS, SEP, MASK, DOG, BARK, ED, CAT = 2, 3, 4, 5, 6, 7, 8


def page(languages: dict[str, LanguageRecord] | None = None) -> str:
    """Returns the page of a dataset with 100 examples of 10, 20 and 32 tokens."""
    counts = np.zeros(33, np.int64)
    counts[[10, 20, 32]] = 3, 4, 93
    train = SplitRecord.model_construct(
        documents=12, examples=100, tokens=3086, sentences=400, repeated_sentences=0.125,
        pairs=PairsRecord(same_document=(52, 0), other_document=(0, 48)), languages=languages,
    )  # fmt: skip
    provenance = Provenance.model_construct(
        tokenizer_hash="a" * 64, vocab_size=1000, seed=7, validation_fraction=0.0,
        pairing=PairingSection(max_seq_length=32), splits={"train": train},
        text=TextRecord(layout="sentences", documents="file", language=None, files=()),
        corpus=CorpusRecord(documents=12, sentences=400, tokens=3000, unigram_entropy=5.25,
                            unknown_rate=0.002),
    )  # fmt: skip
    first = (Piece("dog", False, "", "dog"), Piece("[MASK]", True, "masked", "bark"))
    second = (Piece("cat", False, "random", "dog"), Piece("ed", False, "kept", "##ed"))
    sample = Sample(
        size=100, tokens=3000, changes={"masked": 360, "random": 45, "kept": 45},
        labels=Counter({"B follows A": 52, "B is random": 48}),
        masks=MaskShare("whole_word", predictions=450, wanted=600, without=25, examples=100),
        pieces=[("the", 300), ("##s", 30)],
        shown=[SampleExample(7, "B is random", (first, second), tokens=7, predictions=3)],
    )  # fmt: skip
    preparation: Any = SimpleNamespace(
        documents={"read": 14, "duplicate_documents": 2, "kept": 12},
        lines={"read": 420, "kept": 400},
        cleaning=SimpleNamespace(contamination="set"),
        contamination=[SimpleNamespace(name="RTE/dev.tsv", examples=277, found=3, documents=1)],
    )
    return render(
        provenance, lengths={"train": counts}, sample=sample, masking=MaskingSection(),
        preparation=preparation, directory=Path("data/wiki"),
    )  # fmt: skip


def test_the_page_shows_every_figure() -> None:
    document = read(page())
    root = document.root
    assert rows(root, "including [CLS]") == {
        "train": ["12", "100", "3,086", "30.86", "32", "32"],
    }
    assert rows(root, "Share of padding") == {
        "one example per row": ["3.56%", "1.0000"],
        "packed": ["0.58%", "1.0309"],  # 97 rows; three rows have two examples
    }
    assert rows(root, "Purity") == {"train": ["0", "48"]}
    assert rows(root, "450 tokens to predict in a sample of 100 examples") == {
        "replaced by [MASK]": ["80.00%", "360"],
        "replaced by a random piece": ["10.00%", "45"],
        "left unchanged": ["10.00%", "45"],
    }
    assert rows(root, "Labels in a sample of 100 examples")["B is random"] == ["48.00%", "48"]
    assert rows(root, "most frequent") == {"the": ["10.00%", "300"], "##s": ["1.00%", "30"]}
    assert rows(root, "Duplicate lines") == {"train": ["400", "12.50%"]}
    assert rows(root, "by rule")["duplicate_documents"] == ["2", "0"]
    assert rows(root, "Contamination") == {"RTE/dev.tsv": ["277", "3", "1.08%", "1"]}
    text = document.text
    assert "tokens to predict 15.00%" in text
    assert "whole_word masks 75.0% of its budget, and nothing in 25.0% of the examples" in text
    assert "unigram entropy 5.250 nats" in text
    assert "unknown pieces 0.200%" in text


def language(documents: int, share: float, wanted: float, **figures: Any) -> LanguageRecord:
    return LanguageRecord(
        documents=documents,
        tokens=100 * documents,
        share=share,
        mixture_share=wanted,
        **figures,
    )


def test_languages_are_shown_with_their_shares() -> None:
    languages = {
        "en": language(90, 0.9, 0.823, passes=9.144, examples=700, example_tokens=64_000),
        "is": language(10, 0.1, 0.177, passes=17.7, examples=200, example_tokens=16_000),
    }
    root = read(page(languages)).root
    assert rows(root, "Languages of train") == {
        "en": ["90", "9,000", "90.00%", "82.30%", "9.1440", "700", "80.00%"],
        "is": ["10", "1,000", "10.00%", "17.70%", "17.70", "200", "20.00%"],
    }
    assert "Languages" not in read(page()).text


def test_an_example_is_shown_with_its_masks() -> None:
    # [CLS] dog bark ##ed [SEP] cat [SEP]; bark, ##ed and cat are predicted.
    example = Example(np.array([CLS, DOG, BARK, ED, SEP, CAT, SEP], np.uint16), 5, 0)
    masked = MaskedExample(
        np.array([CLS, DOG, MASK, ED, SEP, DOG, SEP], np.int32),
        np.array([2, 3, 5]),
        np.array([BARK, ED, CAT], np.int32),
    )
    found = sample_example(example, masked, number=3, kind="sop", tokenizer=TOKENIZER)
    assert (found.label, found.tokens, found.predictions) == ("A and B in order", 7, 3)
    assert found.spans == (
        (
            Piece("dog", False, "", "dog"),
            Piece("[MASK]", True, "masked", "bark"),
            Piece("ed", False, "kept", "##ed"),
        ),
        (Piece("dog", False, "random", "cat"),),
    )
