"""Row transforms: masking and padding of one or several examples."""
