"""Initial values of parameters.

``values(shape, seed=…, name=…)`` returns float32 numbers that depend on the arguments alone: the
shape with all layers, the run's seed, the parameter's name (``encoder/layers/output/kernel``).
"""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import numpy as np

from bert_jax.data.rng import stream

# Numbers of one random stream: threads draw the streams of a large parameter in parallel.
_BLOCK: Final = 1 << 20
_CUT: Final = 2.0  # deviations


@dataclasses.dataclass(frozen=True)
class Constant:
    """One value everywhere."""

    value: float

    def values(self, shape: tuple[int, ...], *, seed: int, name: str) -> np.ndarray:
        """Returns an array of the value."""
        del seed, name
        return np.full(shape, self.value, np.float32)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """A normal distribution cut at two standard deviations.

    Like `tf.truncated_normal_initializer(stddev=0.02)` of google-research/bert it does not rescale
    the rest: the parameters' deviation is 0.88 of the given one. The host draws: a program that
    draws would be compiled for every model and mesh, to run once.
    """

    deviation: float  # before truncation
    rows: int | None = None  # to draw, None for all; further rows are zero

    def values(self, shape: tuple[int, ...], *, seed: int, name: str) -> np.ndarray:
        """Returns the truncated normal's values, by blocks of one stream each."""
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
