"""Turns datasets on disk into batches: reader, row transforms, loader, TFRecords."""
