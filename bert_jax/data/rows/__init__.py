"""Row transforms: masking, padding and packing of examples."""
