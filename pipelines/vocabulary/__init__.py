"""Samples a corpus, and trains a tokenizer or finds new words for one."""
