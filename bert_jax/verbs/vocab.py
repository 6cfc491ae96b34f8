"""`bert-jax vocab`: text → tokenizer."""

from __future__ import annotations

from bert_jax.config import RunConfig
from bert_jax.pipelines.vocabulary.train import VocabSection, train_vocab
from bert_jax.section import need, under
from bert_jax.text import Tokenizer


def vocab(config: RunConfig) -> Tokenizer:
    """Trains the tokenizer that the section `vocab` describes and saves it.

    Raises:
        UserError: the section is missing or the text cannot give such a vocabulary.
    """
    section = need(config.vocab, "vocab", "vocab")
    with under("vocab", VocabSection):
        return train_vocab(section)
