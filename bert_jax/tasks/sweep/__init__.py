"""Sweeps over seeds, learning rates and numbers of epochs, as one job."""
