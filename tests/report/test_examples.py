from typing import Any

import numpy as np

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.data.dataset.schema import Example
from bert_jax.data.rows.masking import MaskedExample
from bert_jax.report.dataset.page import (
    ExamplesInputs,
    MaskCounts,
    Overlap,
    Padding,
    SplitFigures,
    render,
)
from bert_jax.report.dataset.sample import Piece, SampleExample, count_changes, sample_example
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.report.strict_html import read, rows

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "bark", "##ed", "cat", "<b>&"]
TOKENIZER = WordPieceTokenizer(PIECES, lower_case=True, strip_accents=None, chinese=True)
CLS, SEP, MASK, DOG, BARK, ED, CAT = 2, 3, 4, 5, 6, 7, 8


def sampled(text: str = "dog") -> SampleExample:
    first = (Piece(text, False, "", text), Piece("[MASK]", True, "masked", "bark"))
    second = (Piece("cat", False, "random", "dog"), Piece("ed", False, "kept", "##ed"))
    return SampleExample(7, "B is random", (first, second), tokens=7, predictions=3)


def inputs(**changes: Any) -> ExamplesInputs:
    counts = np.zeros(33, np.int64)
    counts[[10, 20, 32]] = 3, 4, 93
    train = SplitFigures("train", 12, 100, 3086, counts, 400, 0.125, (0, 48))
    values: dict[str, Any] = {
        "title": "Dataset wiki",
        "made": {"seed": "7"},
        "splits": [train],
        "padding": Padding(32, 0.0356, 0.005, 1.05, 8),
        "sample_size": 100,
        "masking": "rate 0.15",
        "masks": MaskCounts(tokens=3000, masked=360, random=45, kept=45),
        "labels": {"B follows A": 52, "B is random": 48},
        "corpus": {"documents": 12, "sentences": 400, "tokens": 3000, "unknown_rate": 0.002,
                   "unigram_entropy": 5.25},
        "pieces": [("the", 300), ("##s", 30)],
        "dropped": [("read", 14, 420), ("duplicate_documents", 2, 0), ("kept", 12, 400)],
        "overlaps": [Overlap("RTE/dev.tsv", 277, 3, 1)],
        "sample": [sampled()],
        "footer": "f",
        "languages": {},
    }  # fmt: skip
    return ExamplesInputs(**(values | changes))


def sections(made: ExamplesInputs) -> str:
    return read(render(made)).text


def body(made: ExamplesInputs) -> Any:
    return read(render(made)).root


def test_the_page_shows_every_figure() -> None:
    root = body(inputs())
    assert rows(root, "including [CLS]") == {
        "train": ["12", "100", "3,086", "30.86", "32", "32"],
    }
    assert rows(root, "that are padding")["packed"] == ["0.50%", "1.0500"]
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
    text = sections(inputs())
    assert "tokens to predict 15.00%" in text
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
    root = body(inputs(languages={"train": languages}))
    assert rows(root, "Languages of train") == {
        "en": ["90", "9,000", "90.00%", "82.30%", "9.1440", "700", "80.00%"],
        "is": ["10", "1,000", "10.00%", "17.70%", "17.70", "200", "20.00%"],
    }
    assert "Languages" not in sections(inputs())


def test_an_example_is_spelled_with_its_masks() -> None:
    # [CLS] dog bark ##ed [SEP] cat [SEP], of which bark, ##ed and cat are to be predicted.
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
    after = masked.input_ids[masked.positions]
    assert tuple(count_changes(masked.ids, after, mask=MASK)) == (1, 1, 1)
