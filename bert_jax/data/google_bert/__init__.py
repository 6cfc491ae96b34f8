"""Reads and writes google-research/bert's TFRecords without TensorFlow."""
