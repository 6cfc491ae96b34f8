import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.text.sentences import check_language, split_sentences


def test_a_paragraph_is_split_where_sentences_end() -> None:
    text = "Dr. Smith paid $5.50 for it. Was it worth it? Yes! He left."
    assert split_sentences(text, language="en") == [
        "Dr. Smith paid $5.50 for it.",
        "Was it worth it?",
        "Yes!",
        "He left.",
    ]


def test_chinese_is_split_without_white_space() -> None:
    text = "今天天气很好。我们去公园吧！好吗？"
    assert split_sentences(text, language="zh") == ["今天天气很好。", "我们去公园吧！", "好吗？"]


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_character_is_lost_and_no_sentence_is_blank(text: str) -> None:
    sentences = split_sentences(text, language="en")
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize("language", ["en", "zh", "yue", "zh-hant"])
def test_a_language_code_is_taken(language: str) -> None:
    assert check_language(language) == language


@pytest.mark.parametrize("language", ["english", "EN", "", "e", "en_US"])
def test_what_is_not_a_language_code_is_refused(language: str) -> None:
    with pytest.raises(UserError, match=r"language: .* ISO 639"):
        check_language(language)
