"""Writes the shards and indexes of a dataset from tokenised documents."""
