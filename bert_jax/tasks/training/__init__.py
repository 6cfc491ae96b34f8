"""One fine-tuning run: setup, training, evaluation and report."""
