"""The loader: row order, packing, batches, worker processes, data position."""
