"""Reports of datasets, plans and fine-tuned runs: HTML files that load no other file."""
