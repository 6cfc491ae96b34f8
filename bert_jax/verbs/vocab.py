"""`bert-jax vocab`: text → tokenizer."""

from __future__ import annotations

from bert_jax.config import RunConfig, need
from bert_jax.text import Tokenizer
from pipelines.vocab import train_vocab


def vocab(config: RunConfig) -> Tokenizer:
    """Trains the tokenizer that the section `vocab` describes and saves it.

    Raises:
        UserError: the section is missing or the text cannot give such a vocabulary.
    """
    return train_vocab(need(config.vocab, "vocab", "vocab"))
