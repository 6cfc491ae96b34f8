"""Readers, one module per input format. Each cuts files into parts and yields their documents."""
