"""ALBERT (arXiv 1909.11942)."""
