"""Compiles one step for a TPU topology: memory, cycles, work, collectives. Start at `step`."""
