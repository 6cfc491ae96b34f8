"""ELECTRA (arXiv 2003.10555)."""
