"""BERT (arXiv 1810.04805)."""
