"""TFRecords in the format of google-research/bert, read and written without TensorFlow."""
