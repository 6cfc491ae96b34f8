"""Sets up and runs pretraining, fine-tuning, and their scores."""
