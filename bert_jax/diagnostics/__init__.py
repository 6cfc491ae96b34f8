"""The checks of `bert-jax doctor`, one file per subject."""
