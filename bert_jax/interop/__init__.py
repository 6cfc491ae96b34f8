"""Checkpoints in and out: Hugging Face, the 2018 TensorFlow release, StableHLO."""
