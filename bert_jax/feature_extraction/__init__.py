"""Contextual embeddings of tokens, words and sentences, and a probe that scores them."""
