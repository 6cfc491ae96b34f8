"""Tests of sentence embeddings."""
