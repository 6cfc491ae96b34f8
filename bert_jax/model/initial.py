"""Initial values of parameters.

``values(shape, seed=…, name=…)`` returns float32 values that depend only on the arguments: the
shape of all layers together, the seed of the run, and the name of the parameter, such as
``encoder/layers/output/kernel``.
"""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import numpy as np

from bert_jax.data.rng import stream

# Elements per random stream. Threads draw the streams of a large parameter in parallel.
_BLOCK: Final = 1 << 20
_CUT: Final = 2.0  # limit in standard deviations


@dataclasses.dataclass(frozen=True)
class Constant:
    """The same value for all elements."""

    value: float

    def values(self, shape: tuple[int, ...], *, seed: int, name: str) -> np.ndarray:
        """Returns an array filled with the value."""
        del seed, name
        return np.full(shape, self.value, np.float32)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """A normal distribution truncated at two standard deviations.

    The values are not rescaled, as in google-research/bert, which uses
    `tf.truncated_normal_initializer(stddev=0.02)`. So their standard deviation is 0.88 of
    `deviation`. The host draws the values: on devices, each model and mesh would compile a program
    that runs once.
    """

    deviation: float  # standard deviation before truncation
    rows: int | None = None  # number of drawn rows; other rows are zero. Default: all rows

    def values(self, shape: tuple[int, ...], *, seed: int, name: str) -> np.ndarray:
        """Draws the values. Each block of the array has its own random stream."""
        values = np.zeros(shape, np.float32)
        drawn = values[: self.rows].reshape(-1)  # a view

        def fill(block: int) -> None:
            of_block = drawn[block * _BLOCK : (block + 1) * _BLOCK]
            draws = stream(seed, "initial", name, block)
            draws.standard_normal(dtype=np.float32, out=of_block)
            beyond = np.flatnonzero(np.abs(of_block) > _CUT)
            while beyond.size:
                of_block[beyond] = draws.standard_normal(beyond.size, np.float32)
                beyond = beyond[np.abs(of_block[beyond]) > _CUT]
            np.multiply(of_block, np.float32(self.deviation), out=of_block)

        with ThreadPoolExecutor() as threads:
            list(threads.map(fill, range(math.ceil(drawn.size / _BLOCK))))
        return values


Initial: TypeAlias = Constant | TruncatedNormal
