"""One step compiled for a TPU topology, and the compiler's figures of it: see `step`."""
