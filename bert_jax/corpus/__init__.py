"""Runs an encoder over a corpus: parts of files → labels, scores, tags or vectors."""
