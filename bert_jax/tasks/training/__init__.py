"""One fine-tuning run: set-up, training, evaluation, report."""
