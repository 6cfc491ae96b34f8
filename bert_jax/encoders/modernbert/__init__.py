"""ModernBERT (arXiv 2412.13663)."""
