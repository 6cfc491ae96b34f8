"""Pallas kernels, and `random_bits`, which plain JAX also uses."""
