"""Sets up and runs jobs: pretraining, fine-tuning, and their scores."""
