"""The blocks of the attention kernels and the order of their work."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.launch import LANES, PACKED

# Scores that are worked on at a time, of one head with all of its keys at least: arrays of as many
# numbers must fit into VMEM, 16 MiB on v4. Forward there are fewer such arrays.
_FORWARD: Final = 2**20
_BACKWARD: Final = 9 * 2**16
# Scores of all short rows of a block: more fill the units of the core no better, and add code.
_SCORES_OF_ROWS: Final = 2**19
_MOST_ROWS: Final = 8
# Tokens from which on rows are padded to two registers: tiles of one alone cost a quarter more.
_WIDE: Final = 768
# Tokens from which on VMEM has no second buffer for the next keys and values.
_BUFFERED_ONCE: Final = 1536
# Tokens of the longest rows. Keys and values of longer rows do not fit into VMEM beside scores, and
# lines of dropout's words repeat.
LONGEST: Final = 2048
# The same where a block is not two heads in 128 lanes: spilled registers of every head fill VMEM.
_LONGEST_OF_OTHERS: Final = 512
# Heads × tokens of two bytes in wider blocks.
_MOST_TOKENS: Final = 3072


def longest_rows(*, heads: int, columns: int, itemsize: int) -> int:
    """Returns the tokens of the longest rows that fit into VMEM, by what compiles for v4.

    `heads`: of a device; `columns`: of a head; `itemsize`: bytes of an activation.
    """
    group = _block_width(heads, columns) // columns
    if group * columns > LANES:
        tokens = _MOST_TOKENS * 2 // (group * itemsize)
        return min(tokens // LANES * LANES, _LONGEST_OF_OTHERS)
    return LONGEST if group == 2 and itemsize == 2 else _LONGEST_OF_OTHERS


def _block_width(heads: int, columns: int) -> int:
    """Returns the lanes of a block: whole heads, and whole registers or all that there is."""
    whole = math.lcm(columns, LANES)
    return whole if heads * columns % whole == 0 else heads * columns


def padded(length: int) -> int:
    """Returns the tokens of a row in the kernels: whole vector registers of them."""
    whole = LANES if length <= _WIDE else 2 * LANES
    return -(-length // whole) * whole


def padded_queries(queries: int, *, length: int) -> int:
    """Returns the queries of a row in the kernels.

    Few queries are padded to a register's rows and not to its lanes: empty lanes cost nothing, but
    padding in HBM does.
    """
    if queries == length or queries > LANES:
        return padded(queries)
    return -(-queries // PACKED) * PACKED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and settings that a kernel is compiled for."""

    batch: int  # rows of a device
    length: int  # tokens of a row, as the caller has them
    queries: int  # tokens of a row that attend
    heads: int  # of a device
    columns: int  # of a head
    rate: float  # of dropout; 0 draws nothing
    forward: bool  # else backward
    composes: bool  # the device makes words of dropout out of other operations

    @property
    def padded(self) -> int:
        """Tokens of a row in the kernel."""
        return padded(self.length)

    @property
    def padded_queries(self) -> int:
        """Queries of a row in the kernel."""
        return padded_queries(self.queries, length=self.length)

    @property
    def tile(self) -> int:
        """Queries of a row that are worked on at a time, all if they fit."""
        if self.padded_queries <= LANES:
            return self.padded_queries
        most = self._scores // self.padded
        return max(n for n in range(LANES, most + 1, LANES) if self.padded_queries % n == 0)

    @property
    def tiles(self) -> int:
        """Tiles of a row, one after the other."""
        return self.padded_queries // self.tile

    @property
    def width(self) -> int:
        """Lanes of a block."""
        return _block_width(self.heads, self.columns)

    @property
    def group(self) -> int:
        """Heads of a block."""
        return self.width // self.columns

    @property
    def rows(self) -> int:
        """Rows of a block: as many short rows as keep the core's units busy.

        The operations of one head wait for each other. Other heads and rows fill the gaps.
        """
        # Forward on v4 more are slower.
        scores = 2 * _SCORES_OF_ROWS if self.forward and not self.composes else _SCORES_OF_ROWS
        most = min(_MOST_ROWS, scores // (self.group * self.padded * self.padded_queries))
        return max(n for n in range(1, max(most, 1) + 1) if self.batch % n == 0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of rows, of heads, and of queries."""
        return self.batch // self.rows, self.heads // self.group, self.tiles

    @property
    def lanes_of_segments(self) -> int:
        """Lanes of a block of segments; one head alone has additional lanes for them."""
        return self.width if self.group > 1 else LANES

    def stages(self) -> Sequence[Sequence[tuple[int, int]]]:
        """Returns (row, head) of a block, those together that are worked on side by side."""
        heads = list(itertools.product(range(self.rows), range(self.group)))
        together = self._scores // (self.padded * self.tile)
        return [heads[first : first + together] for first in range(0, len(heads), together)]

    @property
    def _scores(self) -> int:
        return _FORWARD if self.forward else _BACKWARD

    @property
    def running(self) -> Sequence[Any]:
        """Scratch of the backward kernel: sums of gradients of keys and values over tiles."""
        if self.forward or self.tiles == 1:
            return ()
        return (pltpu.VMEM((2, self.rows, self.padded, self.width), jnp.float32),)

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result on one device."""
        width = self.heads * self.columns
        sizes = {
            "queries": (self.batch, self.padded_queries, width),
            "slopes": (3, self.batch, self.padded, width),
            "query_slopes": (1, self.batch, self.padded_queries, width),
            "key_slopes": (2, self.batch, self.padded, width),
            "logs": (self.batch, self.heads // self.group, self.group, self.padded_queries),
            "sums": (3, self.batch, 1, width),
        }
        exact = name in ("logs", "sums")
        return jax.ShapeDtypeStruct(sizes[name], jnp.float32 if exact else dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the block of an array: rows, a group of heads, and a tile of the queries."""
        rows, lanes, whole, tile = self.rows, self.lanes_of_segments, self.padded, self.tile
        blocks = {
            "query_words": ((rows, 1, self.group, tile), lambda b, t, i: (b, t, 0, i)),
            "key_words": ((rows, 1, self.group, whole), lambda b, t, _: (b, t, 0, 0)),
            "query_segments": ((rows, tile, lanes), lambda b, t, i: (b, i, 0)),
            "key_segments": ((rows, whole, lanes), lambda b, t, _: (b, 0, 0)),
            "keys": ((rows, whole, self.width), lambda b, t, _: (b, 0, t)),
            "queries": ((rows, tile, self.width), lambda b, t, i: (b, i, t)),
            "slopes": ((3, rows, whole, self.width), lambda b, t, _: (0, b, 0, t)),
            "query_slopes": ((1, rows, tile, self.width), lambda b, t, i: (0, b, i, t)),
            "key_slopes": ((2, rows, whole, self.width), lambda b, t, _: (0, b, 0, t)),
            "logs": ((rows, 1, self.group, tile), lambda b, t, i: (b, t, 0, i)),
            "sums": ((3, rows, 1, self.width), lambda b, t, _: (0, b, 0, t)),
        }
        # All heads of a row have the same segments.
        once = self.tiles > 1 and name == "key_segments"
        once |= self.padded > _BUFFERED_ONCE and name == "keys"
        return pl.BlockSpec(*blocks[name], pipeline_mode=pl.Buffered(1) if once else None)
