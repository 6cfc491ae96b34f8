"""The keys that a model's parameters are drawn from, counted without JAX."""

import functools
import itertools

import jax
from flax import nnx


class ParameterRngs(nnx.Rngs):
    """Gives the keys of `nnx.Rngs(params=key)`, one after another.

    That one counts in an array. Under a trace, each count adds an operation to the program and, on
    the way, has JAX write an error message that nobody reads: a tenth of the time in which a warm
    process starts a run.
    """

    def __init__(self, key: jax.Array | int) -> None:
        """Starts at the first key.

        Args:
            key: typed, or a seed.
        """
        super().__init__()
        typed = jax.random.key(key) if isinstance(key, int) else key
        keys = (jax.random.fold_in(typed, count) for count in itertools.count())
        self._next_key = functools.partial(next, keys)

    def params(self) -> jax.Array:
        """Returns the next parameter's key."""
        return self._next_key()
