"""Samples a corpus and trains WordPiece or SentencePiece on the sample."""
