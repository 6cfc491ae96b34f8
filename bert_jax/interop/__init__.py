"""Checkpoints in and out: Hugging Face, google-research/bert, StableHLO."""
