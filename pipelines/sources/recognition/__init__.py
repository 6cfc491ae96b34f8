"""Recognition of files that are not prose, by their first bytes."""
