"""Late interaction: a vector for each token of a text."""
