import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.text.sentences import check_language, split_sentences
from tests.project import refuses


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["Dr. Smith paid $5.50 for it. ", "Was it worth it? ", "Yes! ", "He left."]),
        ("zh", ["今天天气很好。", "我们去公园吧！", "好吗？"]),
    ],
)
def test_a_paragraph_is_split_at_sentence_ends(language: str, sentences: list[str]) -> None:
    found = split_sentences("".join(sentences), language=language)
    assert found == [sentence.strip() for sentence in sentences]


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_splitting_keeps_characters_and_gives_no_blanks(text: str) -> None:
    sentences = split_sentences(text, language="en")
    assert all(sentence == sentence.strip() != "" for sentence in sentences)
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_only_language_codes_are_accepted() -> None:
    for language in ("en", "zh", "yue", "zh-hant"):
        assert check_language(language) == language
    for language in ("english", "EN", "", "e", "en_US"):
        with refuses("language.code", place="language", found=language):
            check_language(language)
