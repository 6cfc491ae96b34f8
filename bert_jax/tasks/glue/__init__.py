"""GLUE tasks: files, TFDS, metrics and submissions."""
