"""Sentence embeddings: contrastive training, pairs with scores, and retrieval."""
