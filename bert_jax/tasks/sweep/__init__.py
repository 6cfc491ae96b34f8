"""Seeds × learning rates × epochs as one job."""
