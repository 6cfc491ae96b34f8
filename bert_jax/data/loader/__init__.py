"""The loader: row order, batches, worker processes, data position."""
