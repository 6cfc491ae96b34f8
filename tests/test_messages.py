"""Every error has a key. A golden file lists all messages for review."""

from tests.messages import GOLDEN, golden_text, problems, quotations


def test_every_error_has_a_key_a_message_and_the_values_it_names() -> None:
    assert list(problems()) == []


def test_the_messages_equal_the_golden_file() -> None:
    """After an intended change, run ``python -m tests.messages``."""
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


def test_no_other_test_repeats_the_words_of_a_message() -> None:
    assert list(quotations()) == []
