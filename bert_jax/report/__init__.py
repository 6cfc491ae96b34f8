"""The report that fine-tuning ends with: one HTML file that needs nothing else."""
