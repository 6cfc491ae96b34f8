"""Pallas kernels, and what they share with plain JAX."""
