import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks.tokens.entities import (
    Entity,
    entity_report,
    entity_scores,
    find_entities,
    label_scores,
)
from tests.tasks.reference_conlleval import conlleval

# Gold, prediction, and the counts worked by hand: right, in gold, predicted.
CASES = {
    "all right": ("B-A I-A O", "B-A I-A O", (1, 1, 1)),
    "nothing anywhere": ("O O", "O O", (0, 0, 0)),
    "nothing predicted": ("B-A I-A", "O O", (0, 1, 0)),
    "nothing there": ("O O", "B-A O", (0, 0, 1)),
    "I after O begins a span": ("B-A I-A O", "I-A I-A O", (1, 1, 1)),
    "I at the beginning begins a span": ("B-A O", "I-A O", (1, 1, 1)),
    "one I between O": ("O B-A O", "O I-A O", (1, 1, 1)),
    "type changes inside": ("B-A I-A I-A", "B-A I-B I-A", (0, 1, 3)),
    "type changes inside on both sides": ("B-A I-B I-B", "B-A B-B I-B", (2, 2, 2)),
    "B right after B": ("B-A B-A", "B-A B-A", (2, 2, 2)),
    "B right after B taken for one": ("B-A B-A", "B-A I-A", (0, 2, 1)),
    "IOB1: B between spans of one type": ("I-A I-A B-A I-A", "I-A I-A B-A I-A", (2, 2, 2)),
    "IOB1: the B is missed": ("I-A I-A B-A I-A", "I-A I-A I-A I-A", (0, 2, 1)),
    "IOB1 against IOB2": ("I-A O I-B I-B", "B-A O B-B I-B", (2, 2, 2)),
    "too short": ("B-A I-A I-A", "B-A I-A O", (0, 1, 1)),
    "too long": ("B-A I-A O", "B-A I-A I-A", (0, 1, 1)),
    "begins late": ("B-A I-A", "O B-A", (0, 1, 1)),
    "right span, wrong type": ("B-A I-A", "B-B I-B", (0, 1, 1)),
    "BIOES all right": ("B-A I-A E-A O S-B", "B-A I-A E-A O S-B", (2, 2, 2)),
    "E without B begins a span and ends it": ("S-A O", "E-A O", (1, 1, 1)),
    "E after O, then I": ("O E-A I-A", "O S-A S-A", (2, 2, 2)),
    "S inside a span": ("B-A I-A E-A", "B-A S-A E-A", (0, 1, 3)),
    "S after I": ("B-A I-A S-A", "B-A I-A I-A", (0, 2, 1)),
    "B without E": ("B-A E-A O", "B-A I-A O", (1, 1, 1)),
    "E then B of the same type": ("B-A E-A B-A E-A", "B-A E-A B-A E-A", (2, 2, 2)),
    "E then E": ("S-A S-A", "E-A E-A", (2, 2, 2)),
    "I after S": ("S-A S-A", "S-A I-A", (2, 2, 2)),
    "BIOES against IOB2": ("B-A E-A S-A O", "B-A I-A B-A O", (2, 2, 2)),
    "type changes at E": ("B-A I-A E-B", "B-A I-A E-A", (0, 2, 1)),
    "hyphens within a type": ("B-per-name I-per-name", "B-per-name I-per", (0, 1, 2)),
    "hyphens within a type, right": ("B-per-name I-per-name", "I-per-name I-per-name", (1, 1, 1)),
    "no types": ("B I O B", "B I O I", (2, 2, 2)),
    "O at both ends": ("O O B-A O O", "O O B-A O O", (1, 1, 1)),
    "to the last token": ("O B-A I-A", "O B-A I-A", (1, 1, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_of_adversarial_cases_are_those_worked_by_hand_and_of_conlleval(case: str) -> None:
    gold, predicted, (correct, there, guessed) = CASES[case]
    counts = conlleval([gold.split()], [predicted.split()])
    assert counts[:3] == (correct, there, guessed)
    found = entity_scores([gold.split()], [predicted.split()])
    expected = {
        "precision": counts.precision,
        "recall": counts.recall,
        "f1": counts.f1,
        "token_accuracy": counts.accuracy,
    }
    assert found == pytest.approx(expected, abs=1e-12)


def tags(prefixes: str) -> st.SearchStrategy[str]:
    types = st.sampled_from(["PER", "LOC", "per-name"])
    return st.just("O") | st.builds("{}-{}".format, st.sampled_from(prefixes), types)


PREFIXES = {"IOB": "BI", "BIOES": "BIES"}


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(sorted(PREFIXES)))
def test_figures_of_any_labels_are_those_of_conlleval(data: st.DataObject, scheme: str) -> None:
    tag = tags(PREFIXES[scheme])
    pair = st.tuples(tag, tag)
    sentences = data.draw(st.lists(st.lists(pair, min_size=1, max_size=12), min_size=1, max_size=4))
    gold = [[first for first, _ in sentence] for sentence in sentences]
    # Half of the predictions are right, so that longer spans agree now and then.
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


def test_report_has_the_figures_of_each_type_worked_by_hand() -> None:
    records = [
        {"label": ["B-PER", "I-PER", "O", "B-LOC"], "prediction": ["B-PER", "I-PER", "O", "O"]},
        {"label": ["O", "B-PER"], "prediction": ["B-ORG", "B-PER"]},
        {"label": ["B-PER", "O"], "prediction": ["B-PER", "I-PER"]},
    ]
    assert entity_report(records) == {
        "LOC": {"precision": 0, "recall": 0, "f1": 0, "support": 1},
        "ORG": {"precision": 0, "recall": 0, "f1": 0, "support": 0},
        "PER": pytest.approx({"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "support": 3}),
    }
    assert entity_report([{"label": ["O"], "prediction": ["O"]}]) == {}


def test_plain_labels_are_scored_token_by_token() -> None:
    gold, predicted = [["NN", "VB"], ["NN", "IN"]], [["NN", "NN"], ["NN", "IN"]]
    # F1: NN 2·2/(2·2+1) = 0.8, VB 0, IN 1.
    assert label_scores(gold, predicted) == pytest.approx({"accuracy": 3 / 4, "macro_f1": 0.6})
