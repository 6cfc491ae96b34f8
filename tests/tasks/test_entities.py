import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks.tokens.entities import (
    Entity,
    Scheme,
    complete_labels,
    detect_scheme,
    entity_report,
    entity_scores,
    find_entities,
    fits,
    label_scores,
    violations,
)
from tests.tasks.reference_conlleval import conlleval


def tags(prefixes: str) -> st.SearchStrategy[str]:
    types = st.sampled_from(["PER", "LOC", "per-name"])
    return st.just("O") | st.builds("{}-{}".format, st.sampled_from(prefixes), types)


PREFIXES = {"IOB": "BI", "BIOES": "BIES"}


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(sorted(PREFIXES)))
def test_scores_of_any_labels_equal_conllevals(data: st.DataObject, scheme: str) -> None:
    tag = tags(PREFIXES[scheme])
    pair = st.tuples(tag, tag)
    sentences = data.draw(st.lists(st.lists(pair, min_size=1, max_size=12), min_size=1, max_size=4))
    gold = [[first for first, _ in sentence] for sentence in sentences]
    # Make half of the predicted labels correct, so that some long spans agree.
    kept = data.draw(st.lists(st.booleans(), min_size=48, max_size=48))
    predicted = [
        [pair[0] if kept[(12 * row + at) % 48] else pair[1] for at, pair in enumerate(sentence)]
        for row, sentence in enumerate(sentences)
    ]
    counts = conlleval(gold, predicted)
    found = entity_scores(gold, predicted)
    assert found["precision"] == pytest.approx(counts.precision, abs=1e-12)
    assert found["recall"] == pytest.approx(counts.recall, abs=1e-12)
    assert found["f1"] == pytest.approx(counts.f1, abs=1e-12)
    assert found["token_accuracy"] == pytest.approx(counts.accuracy, abs=1e-12)
    records = [{"label": a, "prediction": b} for a, b in zip(gold, predicted, strict=True)]
    for kind, row in entity_report(records).items():
        counts = conlleval(gold, predicted, only=kind)
        expected = (counts.precision, counts.recall, counts.f1, counts.gold)
        assert tuple(row.values()) == pytest.approx(expected, abs=1e-12)


def test_entities_are_spans_of_tokens() -> None:
    labels = ["I-PER", "I-PER", "O", "S-LOC", "E-LOC", "B-ORG"]
    assert find_entities(labels) == [
        Entity("PER", 0, 2),
        Entity("LOC", 3, 4),
        Entity("LOC", 4, 5),
        Entity("ORG", 5, 6),
    ]


def test_plain_labels_are_scored_by_token() -> None:
    gold, predicted = [["NN", "VB"], ["NN", "IN"]], [["NN", "NN"], ["NN", "IN"]]
    # F1: NN 2·2/(2·2+1) = 0.8, VB 0, IN 1.
    assert label_scores(gold, predicted) == pytest.approx({"accuracy": 3 / 4, "macro_f1": 0.6})


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["B-A I-A O", "O B-B"], "IOB2"),
        (["I-A I-A O", "O I-B"], "IOB1"),
        (["I-A B-A O"], "IOB1"),
        (["B-A B-A O"], "IOB2"),
        (["I-A O I-A O I-A", "B-A I-A"], "IOB1"),
        (["B-A O B-A O B-A", "I-A I-A"], "IOB2"),
        (["B-A O", "I-A O"], "IOB2"),  # a tie
        (["B-A E-A O S-B"], "BIOES"),
        (["O S-A"], "BIOES"),
        (["B I O"], "IOB2"),
        (["NN VB"], "none"),
        (["B-A I-A NN"], "none"),
        (["O O"], "none"),
        (["B-A X-A E-A"], "none"),
        # Other spellings.
        (["B_A I_A O", "O B_B"], "IOB2"),
        (["i-A i-A o", "o i-B"], "IOB1"),
        (["B-A M-A E-A O S-A"], "BIOES"),
        (["B-A L-A O U-A"], "BIOES"),
    ],
)
def test_the_scheme_is_inferred_from_the_labels(sentences: list[str], scheme: Scheme) -> None:
    assert detect_scheme([labels.split() for labels in sentences]) == scheme


@pytest.mark.parametrize(
    ("scheme", "labels", "positions"),
    [
        ("IOB1", "I-A I-A B-A I-A O", []),
        ("IOB1", "B-A O B-A", [0, 2]),
        ("IOB1", "I-A B-B I-B", [1]),
        ("IOB2", "B-A I-A B-A O", []),
        ("IOB2", "I-A O I-A B-A I-B", [0, 2, 4]),
        ("BIOES", "B-A I-A E-A S-A O B-B E-B", []),
        ("BIOES", "I-A E-A O", [0]),
        ("BIOES", "B-A O", [0]),
        ("BIOES", "B-A I-A", [1]),
        ("BIOES", "E-A S-A I-A E-A", [0, 2]),
        ("BIOES", "B-A E-B", [0, 1]),
        ("none", "B-A E-B NN", []),
    ],
)
def test_labels_outside_the_scheme_are_found(
    scheme: Scheme, labels: str, positions: list[int]
) -> None:
    assert violations(labels.split(), scheme) == positions


@pytest.mark.parametrize(
    ("found", "scheme", "labels"),
    [
        ({"B_A", "O"}, "IOB2", ("B_A", "I_A", "O")),
        ({"b-A", "o"}, "IOB2", ("b-A", "i-A", "o")),
        ({"U-A", "O"}, "BIOES", ("B-A", "I-A", "L-A", "O", "U-A")),
        ({"B-A", "M-A", "E-A"}, "BIOES", ("B-A", "E-A", "M-A", "O", "S-A")),
    ],
)
def test_added_labels_are_spelled_like_the_others(
    found: set[str], scheme: Scheme, labels: tuple[str, ...]
) -> None:
    assert complete_labels(found, scheme) == labels
    spans = [Entity("A", 0, 2), Entity("A", 3, 4)]
    begin, inside = (next(n for n in labels if n[0].upper() in each) for each in ("B", "EIL"))
    outside = next(name for name in labels if name in "Oo")
    assert find_entities([begin, inside, outside, begin]) == spans


def test_schemes_differ_in_the_labels_they_allow() -> None:
    assert fits("E-A", "BIOES")
    assert not fits("E-A", "IOB2")
    assert not fits("NN", "IOB1")
    assert fits("NN", "none")
