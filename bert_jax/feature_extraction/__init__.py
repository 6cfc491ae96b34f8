"""Contextual embeddings of tokens, words and sentences."""
