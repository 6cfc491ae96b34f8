"""Import and export of checkpoints: Hugging Face, google-research, StableHLO."""
