"""The tasks of GLUE: files, TFDS, metrics, submission."""
