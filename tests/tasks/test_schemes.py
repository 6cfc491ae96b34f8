import pytest

from bert_jax.tasks.tokens.schemes import (
    Scheme,
    detect_scheme,
    fits,
    violations,
)


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["B-A I-A O", "O B-B"], "IOB2"),
        (["I-A I-A O", "O I-B"], "IOB1"),
        (["I-A B-A O"], "IOB1"),
        (["B-A B-A O"], "IOB2"),
        (["I-A O I-A O I-A", "B-A I-A"], "IOB1"),
        (["B-A O B-A O B-A", "I-A I-A"], "IOB2"),
        (["B-A O", "I-A O"], "IOB2"),  # one against one
        (["B-A E-A O S-B"], "BIOES"),
        (["O S-A"], "BIOES"),
        (["B I O"], "IOB2"),
        (["NN VB"], "none"),
        (["B-A I-A NN"], "none"),
        (["O O"], "none"),
        (["B-A M-A E-A"], "none"),
    ],
)
def test_scheme_is_found_in_the_labels(sentences: list[str], scheme: Scheme) -> None:
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
def test_labels_that_a_scheme_has_otherwise_are_found(
    scheme: Scheme, labels: str, positions: list[int]
) -> None:
    assert violations(labels.split(), scheme) == positions


def test_schemes_differ_in_the_labels_they_allow() -> None:
    assert fits("E-A", "BIOES")
    assert not fits("E-A", "IOB2")
    assert not fits("NN", "IOB1")
    assert fits("NN", "none")
