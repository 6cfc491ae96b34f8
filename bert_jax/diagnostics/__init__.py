"""The checks of `bert-jax doctor`, a file a subject."""
