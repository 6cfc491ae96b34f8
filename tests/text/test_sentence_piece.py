"""SentencePiece models with BERT's special pieces."""

import pickle
import pydoc_data.topics
from pathlib import Path

import pytest

from bert_jax.pipelines.vocabulary.algorithms import (
    SentencePieceAlgorithm,
    VocabularyTooSmall,
    train_sentencepiece,
)
from bert_jax.text import Tokenizer, load_tokenizer
from bert_jax.text.sentence_piece import SentencePieceTokenizer, prepare
from bert_jax.text.vocabulary import reserved_pieces
from tests.project import refuses

TEXT = "\n".join(list(pydoc_data.topics.topics.values())[:30])


def train(algorithm: SentencePieceAlgorithm, *, size: int = 600, unused_slots: int = 99) -> bytes:
    lines = [prepare(line, lower_case=True, strip_accents=True) for line in TEXT.splitlines()]
    return train_sentencepiece(
        [line for line in lines if line.strip()],
        algorithm=algorithm,
        size=size,
        unused_slots=unused_slots,
        character_coverage=0.9999,
        max_line_bytes=8192,
    )


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    return SentencePieceTokenizer(train(request.param), lower_case=True)


def test_decoded_text_is_normalised(tokenizer: SentencePieceTokenizer) -> None:
    assert isinstance(tokenizer, Tokenizer)
    text = "The interpreter Évaluates expressions, doesn't it"
    assert tokenizer.decode(tokenizer.encode(text)) == text.lower().replace("é", "e")
    assert tokenizer.encode_batch([text, ""]) == [tokenizer.encode(text), []]


def test_special_pieces_are_at_berts_ids(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.special == (0, 100, 101, 102, 103)
    assert tokenizer.pieces(range(104)) == reserved_pieces(99)
    assert tokenizer.vocab_size == 600


def test_special_pieces_in_the_text_are_ordinary_text(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode("a [MASK] and [SEP] and [unused7]")
    assert min(ids) >= tokenizer.special.unk
    assert not set(ids) & {tokenizer.special.mask, tokenizer.special.sep, tokenizer.special.cls}


def test_continuations_lack_the_word_mark(tokenizer: SentencePieceTokenizer) -> None:
    ids = tokenizer.encode("unexpressionable")
    marks = [piece.startswith("▁") for piece in tokenizer.pieces(ids)]
    assert marks[0]
    assert len(marks) > 1
    assert [not tokenizer.is_continuation[i] for i in ids] == marks
    assert not tokenizer.is_continuation[: len(reserved_pieces(99))].any()


def test_a_saved_tokenizer_opens_unchanged(
    tokenizer: SentencePieceTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    for same in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert same.hash == tokenizer.hash
        assert same.encode("The Name, évaluated") == tokenizer.encode("The Name, évaluated")


def test_hashes_are_equal_only_for_equal_behaviour(tokenizer: SentencePieceTokenizer) -> None:
    model = tokenizer.model
    cased = SentencePieceTokenizer(model, lower_case=False)
    accented = SentencePieceTokenizer(model, lower_case=True, strip_accents=False)
    explicit = SentencePieceTokenizer(model, lower_case=True, strip_accents=True)
    assert len({tokenizer.hash, cased.hash, accented.hash}) == 3
    assert explicit.hash == tokenizer.hash
    assert cased.encode("The") != tokenizer.encode("The")


def test_too_small_a_size_names_the_minimum() -> None:
    with pytest.raises(VocabularyTooSmall) as caught:
        train("unigram", size=110)
    (needed,) = caught.value.args
    assert 110 < needed < 300
    assert train("unigram", size=needed)


@pytest.mark.parametrize("content", [b"", b"[PAD]\n[UNK]\n"])
def test_a_file_without_a_model_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    place = tmp_path / "spiece.model"
    with refuses("tokenizer.not_sentencepiece", place=place, found=len(content)):
        load_tokenizer(tmp_path)
