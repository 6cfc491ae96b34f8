"""A run compiled for a TPU topology without a TPU: memory, cycles, collectives, time, cost."""
