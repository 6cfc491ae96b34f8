"""Reads, writes, locks and downloads files, local or in a bucket."""
