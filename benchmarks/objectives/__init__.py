"""Compares pretraining objectives at equal FLOPs: ``python -m benchmarks.objectives``."""
