"""Sentence embeddings: one vector per text."""
