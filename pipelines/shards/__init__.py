"""Tokenised documents to the shards and indexes of a dataset."""
