"""RoBERTa (arXiv 1907.11692), XLM-R and CamemBERT."""
