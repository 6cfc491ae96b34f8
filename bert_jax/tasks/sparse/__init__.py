"""Sparse vectors: a weight for each piece of the vocabulary."""
