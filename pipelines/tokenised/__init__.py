"""Tokenised documents, sorted by key, in memory and on disk."""
