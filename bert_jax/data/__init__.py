"""Datasets of two-span examples: their form on disk, pairing, masking, packing and the loader."""
