"""Trains a SentencePiece model with BERT's special pieces at BERT's ids."""

import io
import re
from collections.abc import Iterable
from typing import Literal

import sentencepiece

from bert_jax.text.vocabulary import CLS, PAD, SEP, UNK, reserved_pieces

SentencePieceAlgorithm = Literal["unigram", "bpe"]
_TOO_FEW_FOR_CHARACTERS = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
# How the work is shared out decides the order of sums, so the count is fixed: one text, one model.
_THREADS = 4


class VocabularyTooSmall(Exception):
    """The characters alone need more pieces than asked for."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the characters alone need {needed} pieces")
        self.needed = needed  # the least vocabulary size, special pieces included


def train_sentencepiece(
    lines: Iterable[str],
    *,
    algorithm: SentencePieceAlgorithm,
    size: int,
    unused_slots: int,
    character_coverage: float,
    max_line_bytes: int,
) -> bytes:
    """Trains a model: [PAD] is 0, the rest as ``reserved_pieces(unused_slots)`` lays it out.

    ``lines`` is the folded text, at least one line, none longer than ``max_line_bytes`` in UTF-8:
    the library drops longer ones. ``size`` counts all pieces, reserved ones included;
    ``character_coverage`` is the share of the text's characters to have as pieces, 0 to 1. Returns
    the serialised model; it has fewer pieces where the text gives no more.

    Raises:
        VocabularyTooSmall: the characters alone need more than ``size``.
    """
    reserved = reserved_pieces(unused_slots)
    named = (PAD, UNK, CLS, SEP)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=algorithm,
            vocab_size=size,
            hard_vocab_limit=False,
            # The library gives control symbols the lowest free ids, in this order.
            control_symbols=[piece for piece in reserved if piece not in named],
            pad_id=reserved.index(PAD),
            unk_id=reserved.index(UNK),
            bos_id=reserved.index(CLS),
            eos_id=reserved.index(SEP),
            pad_piece=PAD,
            unk_piece=UNK,
            bos_piece=CLS,
            eos_piece=SEP,
            unk_surface=f" {UNK} ",
            character_coverage=character_coverage,
            normalization_rule_name="nmt_nfkc",
            max_sentence_length=max_line_bytes,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        found = _TOO_FEW_FOR_CHARACTERS.search(str(error))
        if found is None:
            raise
        raise VocabularyTooSmall(int(found.group(1))) from None
    return model.getvalue()
