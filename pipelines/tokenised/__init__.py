"""Tokenised documents in memory and on disk, sorted by key."""
