"""A table of words gives the library's ids, for any text and each independent pipeline."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.text import pipeline_file
from bert_jax.text.cached_words import CachedWords, are_apart
from tests.text.library_tokenizers import (
    KINDS,
    MODERNBERT_TEXTS,
    SPECIAL_TEXTS,
    lines_of_scripts,
)

UNIGRAM = ("xlm_roberta", "camembert")

# White space of several definitions, characters that join a space, marks, and contractions.
ODD = (
    "   \t\n\x1c\x85\u00a0\u2003\u2028\u3000\u200b\u2581\u0600\u06dd\u0301\u093f\u200d\u1100\u1161"
    "'sdretvml.,!`\x00\ufffd\U0010ffffaÉİßΣ½²٣ﬁﷺ가東\u0e33😀"
)
ALL = [*SPECIAL_TEXTS, *MODERNBERT_TEXTS]


def spec_of(kind: str) -> dict[str, Any]:
    return json.loads(KINDS[kind]()._tokenizer.to_str())


@cache
def table(kind: str) -> CachedWords:
    spec = spec_of(kind)
    assert are_apart(spec)
    return CachedWords(pipeline_file.open_pipeline(spec, kind), spec)


def library_ids(kind: str, texts: Sequence[str]) -> list[list[int]]:
    found = KINDS[kind]()._tokenizer.encode_batch(texts, add_special_tokens=False)
    return [each.ids for each in found]


@pytest.mark.parametrize("kind", UNIGRAM)
def test_words_have_the_librarys_ids(kind: str) -> None:
    lines = lines_of_scripts(1500, seed=11, also=ALL)
    wanted = library_ids(kind, lines)
    assert [table(kind).encode(line) for line in lines] == wanted
    assert len(table(kind)) > 1000
    assert table(kind).encode_batch(lines) == wanted  # from the table
    table(kind).clear()
    assert table(kind).encode_batch(lines) == wanted  # mostly new words


@pytest.mark.parametrize("kind", UNIGRAM)
@settings(max_examples=150, deadline=None)
@given(text=st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"]))))
def test_any_text_has_the_librarys_ids(kind: str, text: str) -> None:
    assert [table(kind).encode(text)] == library_ids(kind, [text])


@pytest.mark.parametrize(
    "changed",
    [
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"}},
        {"pre_tokenizer": None},
        {"normalizer": {"type": "Strip"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "_"}, "content": " "}},
        {"added_tokens": [{"content": "two words", "rstrip": False}]},
        {"added_tokens": [{"content": "<e1>", "rstrip": True}]},
    ],
)
def test_a_pipeline_whose_words_depend_on_others_has_no_table(changed: dict[str, Any]) -> None:
    assert are_apart(spec_of("camembert"))
    assert not are_apart(spec_of("camembert") | changed)
