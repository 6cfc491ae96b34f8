"""Row transforms: masking, packing and padding of examples."""
