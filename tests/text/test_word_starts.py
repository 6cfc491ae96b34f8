"""Words of scripts with and without spaces, also if characters are divided among pieces."""

import itertools
import unicodedata

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.text.word_starts import WordBounds, continuations

LETTERS = "abé9ßяδשعहक가"
UNSPACED = "中国𠮷々ひカｱไทยកລမꀀ"
MARKS = "\u0301\u093f\u0e34\u17d2\u0ebb\u103b\ufe0f\u200d"
OTHERS = ".-,«。、…🙂🎉€\n\u3000"


def pieces_of(text: str, cuts: list[int]) -> list[bytes]:
    """Cuts a text's UTF-8 into pieces. No piece is a single space, no piece has one inside."""
    held = text.encode()
    spaces = {at for at, byte in enumerate(held) if byte == ord(" ")}
    inner = {1 + cut % len(held) for cut in cuts} - {at + 1 for at in spaces}
    edges = sorted({0, len(held), *spaces, *inner})
    return [held[a:b] for a, b in itertools.pairwise(edges)]


def continues(pieces: list[bytes]) -> list[bool]:
    """Returns whether each piece continues a word, from the characters of the whole text."""
    held = b"".join(pieces)
    found, at = [], 0
    for piece in pieces:
        before, after = held[:at].decode("utf-8", "ignore"), held[at:].decode("utf-8", "ignore")
        inside = held[at] & 0xC0 == 0x80
        stem = before.rstrip(MARKS)[-1:]
        joins = after[:1] in MARKS or (after[:1] in LETTERS and stem != "" and stem in LETTERS)
        found.append(bool(at and (inside or joins)))
        at += len(piece)
    return found


@settings(deadline=None, max_examples=400)
@given(
    st.text(st.sampled_from([*LETTERS, *UNSPACED, *MARKS, *OTHERS, " "]), min_size=1, max_size=30)
    .map(lambda text: " ".join(text.split(" ")).strip(" " + MARKS))
    .filter(lambda text: text and "  " not in text and not any(f" {m}" in text for m in MARKS)),
    st.lists(st.integers(0, 200), max_size=60),
)
def test_characters_decide_where_words_begin(text: str, cuts: list[int]) -> None:
    pieces = pieces_of(text, cuts)
    assert b"".join(pieces) == text.encode()
    vocabulary = sorted({*pieces, b"\xe0", b"\x80"})
    bounds = WordBounds.of(vocabulary)
    ids = np.array([vocabulary.index(piece) for piece in pieces], np.uint16)
    assert continuations(ids, bounds.continues, bounds).tolist() == continues(pieces)


def words(*pieces: bytes | None) -> list[bytes]:
    """Returns the words of pieces, without special ones."""
    bounds = WordBounds.of(pieces)
    found: list[bytes] = []
    for piece, inside in zip(pieces, bounds.continuations(np.arange(len(pieces))), strict=True):
        if inside:
            found[-1] += piece or b""
        else:
            found.append(piece or b"")
    return found


def test_a_divided_emoji_and_a_divided_ideograph_are_words() -> None:
    emoji = "🙂".encode()
    assert words(b"ok", emoji[:2], emoji[2:], emoji[:3], emoji[3:], b"ok") == [
        b"ok", emoji, emoji, b"ok",
    ]  # fmt: skip
    both = "中国".encode()
    assert words(both[:4], both[4:5], both[5:], b"a") == [both, b"a"]
    assert unicodedata.name("ช").startswith("THAI")
    thai, devanagari = "ช".encode(), "च".encode()
    assert thai[0] == devanagari[0]  # only the next bytes tell the script
    assert words(*(bytes([byte]) for byte in thai + thai)) == [thai, thai]
    assert words(*(bytes([byte]) for byte in devanagari * 2)) == [devanagari * 2]


def test_spaces_special_pieces_and_unknown_ones() -> None:
    assert words(b"a", b" ", b"b", b" ", "中".encode(), b" ", b" (") == [
        b"a", b" b", b" " + "中".encode(), b" ", b" (",
    ]  # fmt: skip
    assert words(None, b"a", None, b"a") == [b"", b"a", b"", b"a"]
    assert words(b"a", b"", b"b") == [b"a", b"b"]  # the unknown piece begins the word of b
    cut = "ช".encode()[:2]
    assert words(cut, None, b"a") == [cut, b"", b"a"]
