"""Learning-rate schedule and optimizers."""
