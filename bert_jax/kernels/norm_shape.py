"""What the kernels around LayerNorm are compiled for: the blocks they see."""

import dataclasses
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.registers import LANES, PACKED

# Bytes of a block of one array: backward four of them lie in VMEM twice.
_BLOCK: Final = 2**20
# Tokens of a block from which on more hide nothing: of short rows several make one.
_TOKENS: Final = 512
CHUNK: Final = PACKED  # tokens that are worked on at a time
# Chunks that are written out one after the other, for statistics of some to be made while others
# are multiplied: more spill.
_SIDE_BY_SIDE: Final = 8


# Numbers of the longest token: a block has tokens of float32 to fill a register's lanes.
MOST_NUMBERS: Final = _BLOCK // 4 // LANES


def fits(width: int) -> bool:
    """Returns whether the kernels take tokens of so many numbers: whole registers of them."""
    return width % LANES == 0 and width <= MOST_NUMBERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a kernel is compiled for."""

    batch: int  # rows of a device
    length: int  # tokens of a row, as the caller has them
    width: int  # numbers of a token
    itemsize: int  # bytes of a number
    factors: int  # arrays that words of rows come as, if dropout draws any
    scale_up: float  # of what dropout keeps
    eps: float
    forward: bool  # else backward

    @property
    def padded(self) -> int:
        """Tokens of a row in the kernel: whole registers, or whole tiles."""
        whole = CHUNK if self.length <= self._fitting else LANES
        return -(-self.length // whole) * whole

    @property
    def tile(self) -> int:
        """Tokens of a row that a block has, all if they fit."""
        if self.padded <= self._fitting:
            return self.padded
        tiles = range(LANES, self._fitting + 1, LANES)
        return max(tile for tile in tiles if self.padded % tile == 0)

    @property
    def rows(self) -> int:
        """Rows of a block: of short ones several."""
        most = max(self._fitting // self.tile, 1) if self.tile == self.padded else 1
        return max(n for n in range(1, most + 1) if self.batch % n == 0)

    @property
    def chunks(self) -> int:
        """Of a block, all rows of it."""
        return self.rows * self.tile // CHUNK

    @property
    def side_by_side(self) -> int:
        """Chunks that a trip of the loop over them has."""
        return max(n for n in range(1, _SIDE_BY_SIDE + 1) if self.chunks % n == 0)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of rows, and of tokens."""
        return self.batch // self.rows, self.padded // self.tile

    @property
    def _fitting(self) -> int:
        """Tokens of the largest block."""
        return min(_BLOCK // (self.width * self.itemsize), _TOKENS) // CHUNK * CHUNK

    @property
    def across(self) -> int:
        """Arrays that words of columns come as."""
        return self.factors + 1 if self.factors else 0

    @property
    def words(self) -> int:
        """Tokens that words of dropout are drawn for: whole registers, turned in the kernel."""
        return self.padded if self.tile < self.padded else -(-self.padded // LANES) * LANES

    @property
    def turned(self) -> list[Any]:
        """What the backward kernel keeps: the words of a block's tokens, one in all lanes."""
        tokens = self.words // self.grid[1]
        dtype = jnp.int32 if self.factors == 1 else jnp.float32
        return [pltpu.VMEM((self.rows, tokens, LANES), dtype)] * self.factors

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns what a result looks like on one device."""
        if name == "sums":
            blocks, tiles = self.grid
            return jax.ShapeDtypeStruct((3, blocks, tiles, 1, self.width), jnp.float32)
        return jax.ShapeDtypeStruct((self.batch, self.padded, self.width), dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the part of an array that one run of a kernel sees."""
        rows, tile, width = self.rows, self.tile, self.width
        blocks = {
            "tokens": ((rows, tile, width), lambda b, i: (b, i, 0)),
            "vector": ((1, width), lambda b, i: (0, 0)),
            "down": ((rows, 1, self.words // self.grid[1]), lambda b, i: (b, 0, i)),
            "across": ((rows, 1, width), lambda b, i: (b, 0, 0)),
            "sums": ((3, 1, 1, 1, width), lambda b, i: (0, b, i, 0, 0)),
        }
        return pl.BlockSpec(*blocks[name])
