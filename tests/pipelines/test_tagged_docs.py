from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.finetune.conll import Columns, Sentence, read_conll
from bert_jax.finetune.entities import find_entities
from bert_jax.finetune.schemes import detect_scheme, violations
from pipelines.tagged_docs import TaggedDocs, mark_spans, tag_sentence, write_tagged_docs


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> TaggedDocs:
    return write_tagged_docs(tmp_path_factory.mktemp("docs"))


def sentences(path: Path) -> list[Sentence]:
    return read_conll(path, Columns(), labels="required").sentences


def test_documentation_gives_enough_sentences_to_train_a_tagger_on(docs: TaggedDocs) -> None:
    train, dev = sentences(docs.train), sentences(docs.dev)
    assert len(train) > 1500
    assert len(train) // 9 - 1 <= len(dev) <= len(train) // 9 + 1
    kinds = Counter(e.type for s in train for e in find_entities(s.labels or []))
    assert kinds.keys() == {"CODE", "TERM", "PEP", "VERSION"}
    assert kinds["CODE"] > 1000
    assert kinds["TERM"] > 300


def test_labels_are_iob2(docs: TaggedDocs) -> None:
    labels = [sentence.labels or [] for path in docs for sentence in sentences(path)]
    assert detect_scheme(labels) == "IOB2"
    assert not any(violations(names, "IOB2") for names in labels)


def test_tokens_hold_no_marks(docs: TaggedDocs) -> None:
    tokens = Counter(token for path in docs for s in sentences(path) for token in s.tokens)
    assert not [token for token in tokens if any("\ue000" <= c <= "\ue003" for c in token)]
    assert '"' not in tokens
    assert "``" not in tokens


def test_no_sentence_is_in_both_files_or_twice_in_one(docs: TaggedDocs) -> None:
    found = Counter(" ".join(s.tokens).casefold() for path in docs for s in sentences(path))
    assert found.most_common(1)[0][1] == 1


def test_another_process_of_one_python_gives_the_same_files(
    docs: TaggedDocs, tmp_path: Path
) -> None:
    script = (
        "from pipelines.tagged_docs import write_tagged_docs\n"
        f"write_tagged_docs({str(tmp_path)!r}, max_sentences=200)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-W", "error", "-c", script], env=environment, check=True)
    for path, count in ((docs.train, 180), (docs.dev, 20)):
        again = tmp_path / path.name
        assert path.read_bytes().startswith(again.read_bytes())
        assert len(sentences(again)) == count
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.txt", "train.txt"]


def test_too_few_sentences_for_two_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_sentences: found 9, allowed: 10 or more"):
        write_tagged_docs(tmp_path, max_sentences=9)
    assert list(tmp_path.iterdir()) == []


def test_markup_becomes_labels() -> None:
    text = 'The *new name* of "dict.get()" is ``x`` since Python 3.8, see PEP 484 for *why*.'
    assert [f"{token}/{label}" for token, label in tag_sentence(mark_spans(text))] == [
        *("The/O", "new/B-TERM", "name/I-TERM", "of/O"),
        *("dict.get/B-CODE", "(/I-CODE", ")/I-CODE", "is/O", "x/B-CODE"),
        *("since/O", "Python/O", "3.8/B-VERSION", ",/O"),
        *("see/O", "PEP/B-PEP", "484/I-PEP", "for/O", "why/B-TERM", "./O"),
    ]


def test_blocks_whose_quotes_cannot_be_paired_are_left_out() -> None:
    text = 'One "quote.\n\nA *word*.\n\nOf "a "nested"".'
    assert mark_spans(text) == "A \ue002word\ue003."


@settings(deadline=None, max_examples=150)
@given(st.text('ab "*`\n.\ue000\ue001\ue002\ue003', max_size=60))
def test_a_sentence_with_marks_that_do_not_pair_has_no_labels(text: str) -> None:
    tagged = tag_sentence(text)
    assert not violations([label for _, label in tagged], "IOB2")
    assert not any("\ue000" <= c <= "\ue003" for token, _ in tagged for c in token)
    if text.count("\ue000") != text.count("\ue001"):
        assert tagged == []
