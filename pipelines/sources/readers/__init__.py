"""One file per format of input: how it is cut into parts, and its documents."""
