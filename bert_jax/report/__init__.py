"""Reports of datasets, plans and fine-tuned runs, as self-contained HTML files."""
