"""Turns text into token ids: one `Tokenizer` class for all kinds."""

from bert_jax.text.load import load_tokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import SpecialIds
from bert_jax.text.wordpiece import load_wordpiece

__all__ = ["SpecialIds", "Tokenizer", "load_tokenizer", "load_wordpiece"]
