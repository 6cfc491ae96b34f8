"""DeBERTaV3 (arXiv 2111.09543), and DeBERTaV2 without convolution."""
