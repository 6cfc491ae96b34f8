"""DistilBERT (arXiv 1910.01108)."""
