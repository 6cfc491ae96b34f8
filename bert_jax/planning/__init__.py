"""Compiles a run for a TPU topology without a TPU; estimates memory, time and cost."""
