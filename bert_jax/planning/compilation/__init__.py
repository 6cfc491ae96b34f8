"""Compiles one step for a TPU topology, and reads the compiler's figures. Start at `step`."""
