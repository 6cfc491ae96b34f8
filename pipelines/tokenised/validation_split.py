"""Which documents belong to the validation split."""

from bert_jax.data.rng import digest128


def is_validation(identity: str, *, fraction: float) -> bool:
    """Returns whether a document is in the validation split. This depends on its id alone."""
    return digest128(0, "validation", identity) < fraction * 2**128
