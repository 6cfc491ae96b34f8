"""The keys of parameters are those of Flax."""

import jax
import numpy as np
import pytest
from flax import nnx

from bert_jax.model.parameter_rngs import ParameterRngs


def drawn(rngs: nnx.Rngs) -> list[jax.Array]:
    return [jax.random.key_data(rngs.params()) for _ in range(4)]


@pytest.mark.parametrize("typed", [False, True], ids=["seed", "key"])
def test_keys_are_those_of_flax_in_their_order(typed: bool) -> None:
    key = jax.random.key(7, impl="threefry2x32") if typed else 7
    expected = drawn(nnx.Rngs(params=key))
    np.testing.assert_array_equal(drawn(ParameterRngs(key)), expected)
    np.testing.assert_array_equal(jax.jit(lambda: drawn(ParameterRngs(key)))(), expected)
    assert len(np.unique(expected, axis=0)) == 4
