from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.dataset.provenance import LanguageRecord
from bert_jax.data.dataset.schema import Example
from bert_jax.data.rows.masking import MaskedExample
from bert_jax.report.charts import histogram
from bert_jax.report.dataset.page import (
    ExamplesInputs,
    MaskCounts,
    Overlap,
    Padding,
    SplitFigures,
    render,
)
from bert_jax.report.dataset.sample import DrawnExample, Piece, count_changes, draw_example
from bert_jax.report.html import element
from bert_jax.report.page import page, section
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.report.strict_html import read
from tests.report.test_sections import rows

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "bark", "##ed", "cat", "<b>&"]
TOKENIZER = WordPieceTokenizer(PIECES, lower_case=True, strip_accents=None, chinese=True)
CLS, SEP, MASK, DOG, BARK, ED, CAT = 2, 3, 4, 5, 6, 7, 8


def drawn(text: str = "dog") -> DrawnExample:
    first = (Piece(text, False, "", text), Piece("[MASK]", True, "masked", "bark"))
    second = (Piece("cat", False, "random", "dog"), Piece("ed", False, "kept", "##ed"))
    return DrawnExample(7, "B is random", (first, second), tokens=7, predictions=3)


def inputs(**changes: Any) -> ExamplesInputs:
    counts = np.zeros(33, np.int64)
    counts[[10, 20, 32]] = 3, 4, 93
    train = SplitFigures("train", 12, 100, 3086, counts, 400, 0.125, (0, 48))
    values: dict[str, Any] = {
        "title": "Dataset wiki",
        "made": {"seed": "7"},
        "splits": [train],
        "padding": Padding(32, 0.0356, 0.005, 1.05, 8),
        "sample": 100,
        "masking": "rate 0.15",
        "masks": MaskCounts(tokens=3000, masked=360, random=45, kept=45),
        "labels": {"B follows A": 52, "B is random": 48},
        "corpus": {"documents": 12, "sentences": 400, "tokens": 3000, "unknown_rate": 0.002,
                   "unigram_entropy": 5.25},
        "pieces": [("the", 300), ("##s", 30)],
        "dropped": [("read", 14, 420), ("duplicate_documents", 2, 0), ("kept", 12, 400)],
        "overlaps": [Overlap("RTE/dev.tsv", 277, 3, 1)],
        "drawn": [drawn()],
        "footer": "f",
        "languages": {},
    }  # fmt: skip
    return ExamplesInputs(**(values | changes))


def sections(made: ExamplesInputs) -> str:
    return read(render(made)).text


def body(made: ExamplesInputs) -> Any:
    """The page as a tree, for looking into its tables."""
    html = render(made)
    return ElementTree.fromstring(html[html.index("<main>") : html.index("</main>")] + "</main>")


def test_the_page_shows_every_figure() -> None:
    root = body(inputs())
    assert rows(root, "count [CLS]") == {
        "train": ["12", "100", "3,086", "30.86", "32", "32"],
    }
    assert rows(root, "hold no token")["packed"] == ["0.50%", "1.0500"]
    assert rows(root, "Purity") == {"train": ["0", "48"]}
    assert rows(root, "450 tokens of a sample of 100 examples") == {
        "replaced by [MASK]": ["80.00%", "360"],
        "replaced by a random piece": ["10.00%", "45"],
        "left as they are": ["10.00%", "45"],
    }
    assert rows(root, "100 examples of a sample")["B is random"] == ["48.00%", "48"]
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


def test_impure_pairs_are_said_in_words() -> None:
    assert "Some random pairs" not in sections(inputs())
    split = inputs().splits[0]._replace(impure=(2, 48))
    text = sections(inputs(splits=[split]))
    assert "Some random pairs are of one document." in text
    assert "impure random pairs 2" in text


def test_what_was_not_counted_is_said_not_to_be() -> None:
    bare = inputs().splits[0]._replace(impure=None, sentences=None, repeated_sentences=None)
    text = sections(inputs(splits=[bare], dropped=None, overlaps=None))
    assert "did not count how pure its pairs are" in text
    assert "did not count duplicate lines" in text
    assert "no cleaning was asked for" in text
    assert "Contamination: not looked for" in text
    single = sections(inputs(splits=[bare], labels={"one span, no label": 100}))
    assert "pure" not in single


@given(text=st.text(st.characters(), min_size=1, max_size=20))
@settings(deadline=None, max_examples=25)
def test_any_text_is_shown_as_text(text: str) -> None:
    read(render(inputs(drawn=[drawn(text)], pieces=[(text, 300)], title=text)))


def test_marks_say_what_the_model_sees_and_what_it_was() -> None:
    document = read(render(inputs()))
    marks = [tag.attributes for tag in document.named("mark") if "ol" in tag.parents]
    assert [mark["class"] for mark in marks] == ["masked", "random", "kept"]
    assert marks[0]["title"] == "the model sees [MASK]; it was bark"
    assert marks[1]["title"] == "the model sees cat; it was dog"
    assert "A dog [MASK] bark B cat dog ed example 7 label B is random" in document.text


def test_an_example_is_spelled_with_its_masks() -> None:
    # [CLS] dog bark ##ed [SEP] cat [SEP], of which bark, ##ed and cat are to be predicted.
    example = Example(np.array([CLS, DOG, BARK, ED, SEP, CAT, SEP], np.uint16), 5, 0)
    masked = MaskedExample(
        np.array([CLS, DOG, MASK, ED, SEP, DOG, SEP], np.int32),
        np.array([2, 3, 5]),
        np.array([BARK, ED, CAT], np.int32),
    )
    found = draw_example(example, masked, number=3, kind="sop", tokenizer=TOKENIZER)
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


def test_an_example_without_a_pair_has_one_span_with_its_separators() -> None:
    ids = np.array([CLS, DOG, SEP, CAT, SEP], np.uint16)
    nothing = MaskedExample(ids.astype(np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32))
    found = draw_example(
        Example(ids, 5, 0), nothing, number=0, kind="full_sentences", tokenizer=TOKENIZER
    )
    assert [[piece.text for piece in span] for span in found.spans] == [["dog", "[SEP]", "cat"]]
    assert found.label == "one span, no label"


@pytest.mark.parametrize("counts", [[1], [0, 7], [1, 0, 99999], [3] * 64])
def test_a_histogram_stays_inside_its_frame(counts: list[int]) -> None:
    edges = [10 * at + 1 for at in range(len(counts) + 1)]
    figure = histogram("t", counts, edges=edges, x_label="tokens")
    bars = [rect for rect in figure.iter("rect") if rect.get("class") == "bin"]
    assert len(bars) == len(counts)
    heights = [float(bar.get("height", "nan")) for bar in bars]
    assert all((height > 0) == (value > 0) for height, value in zip(heights, counts, strict=True))
    assert sorted(heights) == [h for _, h in sorted(zip(counts, heights, strict=True))]
    for bar in bars:
        top, left = float(bar.get("y", "nan")), float(bar.get("x", "nan"))
        assert 26 <= top <= 230 - 42
        assert 56 <= left <= 350 - 12
    read("<!DOCTYPE html>\n" + page_of(figure))


def page_of(figure: Any) -> str:
    made = page(title="t", header=[], sections=[section("s", element("div", figure))], footer="f",
                script="")  # fmt: skip
    return made.partition("\n")[2]
