"""From a dataset on disk to batches: reader, row transforms, loader, google-research/bert files."""
