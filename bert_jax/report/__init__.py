"""Self-contained HTML reports of datasets, plans and fine-tuned runs."""
