"""Forward passes over rows of different lengths, and `fill-mask`."""
