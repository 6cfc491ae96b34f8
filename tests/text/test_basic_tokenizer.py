"""Words equal those of the 2018 release for any Unicode text, under any Python."""

import hashlib
import unicodedata

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from bert_jax.text.basic_tokenizer import _NEEDS_CONTEXT, _NEWER, WordSplitter
from tests.text.reference_wordpiece import basic_words

SETTINGS = [
    {"lower_case": True},
    {"lower_case": False},
    {"lower_case": True, "strip_accents": False},
    {"lower_case": False, "strip_accents": True},
    {"lower_case": True, "chinese": False},
]
# Characters with special rules: all kinds of white space and controls, accents before and after
# letters, punctuation of several scripts, CJK and its compatibility forms, Hangul, kana,
# context-dependent casing, marks that NFD reorders, unassigned and private characters, surrogates.
HOT = (
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2000\u2028\u2029\u202f\u3000\0\x01\x7f\xad\u200b\u200d"
    "\u2060\ufeff\ufffd\u061c\u180e\u0300\u0301\u0307\u0345\u0327\u05b0\u064b\u093e\u094d\u302e"
    "\u302f\u1715\u1b44\U0001d165\U0001d15e\U0001d1bc$+<=>^`|~_-.,'\"[]#@\u00a1\u00b7\u2019\u2014"
    "\u3002\u060c\u0964\u1fef\u037e\u0387\u166d中文㐀\uf900\U0002f800\U00020000\u2f00한글각カ゛ヷ"
    "aAzZéÉñßẞİıſΣσςΆΐᾳᾼǅDžﬁﬀÅKΩ①½²\U0001f600\U0001f469\u200d\ufe0f\u0378\ue000\U000e0001\ud800\udfff"
)


def of_14(character: str) -> bool:
    """Returns whether Python's tables for the character agree with Unicode 14.0."""
    return _NEWER.match(character) is None


texts = st.text(
    st.one_of(st.sampled_from(HOT), st.sampled_from("aΣ .\u0301\u302e"), st.characters(codec=None)),
    max_size=30,
).filter(lambda text: _NEWER.search(text) is None)


@pytest.mark.parametrize("rules", SETTINGS, ids=str)
@settings(deadline=None, max_examples=400)
@given(text=texts)
@example(text="ὈΔΥΣΣΕΎΣ ΟΔΟΣ. ΣΑΣ'Σ Σ\u0301Σ a\u00adΣ")
@example(text="a\x00b c\u2028d e\u3000f\ufeff g\x85h")
@example(text="\u1715\u302e\u1715 a\U0001d165\u302e")
@example(text="don't stop--now [MASK] $5.00 ~`^|")
def test_words_equal_the_releases_on_any_text(rules: dict[str, bool], text: str) -> None:
    assert WordSplitter(**rules).split(text) == basic_words(text, **rules)


@pytest.mark.parametrize("rules", SETTINGS[:2], ids=str)
def test_every_kind_of_character_equals_the_releases(rules: dict[str, bool]) -> None:
    splitter = WordSplitter(**rules)
    bulk = {"Cn", "Co", "Cs"}  # also ideographs and syllables: tests every 499th
    kinds: list[str] = []
    for code in range(0x110000):
        category = unicodedata.category(character := chr(code))
        alike = category in bulk or (category == "Lo" and 0x3400 <= code < 0x32000)
        if not (alike and code % 499) and of_14(character):
            kinds.append(character)
    for start in range(0, len(kinds), 100):
        text = " ".join(f"x{character}y {character}" for character in kinds[start : start + 100])
        assert splitter.split(text) == basic_words(text, **rules)


@pytest.mark.parametrize(
    ("rules", "digest"),
    [
        ({"lower_case": True}, "cff725482ba0cdd5d7aa18a8497094dc2eef6f791b1e8503e541266aa65ed5fd"),
        ({"lower_case": False}, "734bb874c7a629920d55fa1222b377dae0ebf005823e6e397ec8c0ad05d519b1"),
    ],
    ids=str,
)
def test_words_do_not_depend_on_the_python_version(rules: dict[str, bool], digest: str) -> None:
    """The expected hash is from Python 3.11 (Unicode 14.0), over all planes with characters."""
    splitter, found = WordSplitter(**rules), hashlib.sha256()
    for start in [*range(0, 0x40000, 0x400), *range(0xE0000, 0xE1000, 0x400)]:
        text = "\n".join(f"x{chr(code)}y" for code in range(start, start + 0x400))
        found.update("\n".join(splitter.split(text)).encode("utf-8", "surrogatepass"))
    assert found.hexdigest() == digest


def test_all_context_dependent_characters_are_listed() -> None:
    """NFD reorders combining characters. Accents are dropped, so their order has no effect."""
    characters = [*map(chr, range(0x110000))]
    reordered = {
        character
        for character in characters
        for part in unicodedata.normalize("NFD", character.lower())
        if unicodedata.combining(part) and unicodedata.category(part) != "Mn"
    }
    found = {character for character in characters if _NEEDS_CONTEXT.match(character)}
    assert found == {*filter(of_14, reordered), "Σ"}
