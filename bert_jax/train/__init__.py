"""The one train loop: state, step, bookkeeping, checkpoints, reports."""
