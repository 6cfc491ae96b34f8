"""The blocks of the kernels of rotary attention."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.attention_tiles import HIDDEN, segment_lanes
from bert_jax.kernels.pallas_call import LANES

# Longer rows need more VMEM than the compiler's default.
_LONG: Final = 1024
_VMEM: Final = 96 << 20  # bytes that long rows may use; the compiler lowers it to the core's VMEM
_SMALL: Final = 64 << 20  # bytes of VMEM on v5p
# Scores of one head that are worked on at a time, forward and backward, and keys of a chunk. Larger
# tiles of long rows keep the matrix units busier: backward at 8,192 tokens 876,000 cycles a row and
# two heads on v5e, and not 1,113,000 with the numbers of short rows.
_SCORES: Final = {False: (2**20, 9 * 2**16), True: (2**22, 2**21)}  # by whether a row is long
_SCORES_OF_SMALL: Final = (2**21, 2**20)  # of long rows on v5p; v5e would take 6.7% longer
_CHUNKS: Final = {False: 1024, True: 512}
_BLOCK: Final = 1024  # queries of a block of local attention
# Maximum queries of a tile, and keys of a chunk, in causal attention, by whether a row is long. A
# tile skips the chunks after its last query, so smaller ones compute fewer scores.
_CAUSAL: Final = {False: (256, 256), True: (1024, 512)}


def longest_row(vmem: int | None) -> int:
    """Returns the maximum tokens of a row for the bytes of a core's VMEM, if they are known."""
    return _LONG if vmem is not None and vmem < _SMALL else LONGEST


def is_small(vmem: int | None) -> bool:
    """Returns whether a VMEM of `vmem` bytes is too small for the largest tiles."""
    return vmem is not None and vmem <= _SMALL


LONGEST: Final = 8192
"""Maximum tokens of a row where VMEM has room: on v5e, v5p and v6e, but not on v4."""
WIDEST_WINDOW: Final = 2 * LANES
"""Largest window: the keys of a tile, except for the first and the last one, are inside the row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryShape:
    """Sizes that a kernel is compiled for."""

    batch: int  # rows of a device
    length: int  # tokens of a row: a multiple of the tile
    heads: int  # of a device
    columns: int  # of a head
    window: int | None  # tokens around a query whose keys it sees; None: all
    causal: bool  # whether a query sees no later key
    forward: bool  # else backward
    is_small: bool  # whether a core's VMEM is too small for the largest tiles

    @property
    def is_long(self) -> bool:
        """Whether a row needs more VMEM than the compiler's default."""
        return self.length > _LONG

    @property
    def width(self) -> int:
        """Lanes of a block: whole heads and whole registers."""
        return math.lcm(self.columns, LANES)

    @property
    def group(self) -> int:
        """Heads of a block."""
        return self.width // self.columns

    @property
    def keys(self) -> int:
        """Keys of a chunk."""
        if self.window is not None:
            after = 0 if self.causal else self.window // 2
            return min(self.length, self.tile + self.window // 2 + after)
        return _divisor(self.length, self._most(_CHUNKS[self.is_long], _CAUSAL[self.is_long][1]))

    @property
    def chunks(self) -> int:
        """Chunks of keys in a row, or the one chunk that a tile of a local layer reads."""
        return 1 if self.window is not None else self.length // self.keys

    def chunks_to_read(self) -> Any:
        """Returns the number of chunks that the queries of this run read, from the first one on."""
        if not self.causal or self.chunks == 1:
            return self.chunks
        return pl.cdiv(self._first() + self.tile, self.keys)

    @property
    def scores(self) -> int:
        """Number of scores of a row and head that the kernel computes."""
        tiles = self.length // self.tile
        if not self.causal or self.chunks == 1:
            return self.length * self.keys * self.chunks
        read = (-(-(at + 1) * self.tile // self.keys) for at in range(tiles))
        return self.tile * self.keys * sum(read)

    @property
    def tile(self) -> int:
        """Queries whose scores are one product."""
        if self.window is not None:
            return LANES
        most = max(LANES, self._scores // self.keys)
        return _divisor(self.length, self._most(most, _CAUSAL[self.is_long][0]))

    def _most(self, most: int, causal: int) -> int:
        return min(most, causal) if self.causal else most

    @property
    def tiles(self) -> int:
        """Tiles of a block."""
        if self.window is None:
            return 1
        whole, most = self.length // self.tile, _BLOCK // self.tile
        return max(n for n in range(1, min(whole, most) + 1) if whole % n == 0)

    @property
    def block(self) -> int:
        """Queries of a run of the kernel."""
        return self.tile * self.tiles

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.length // self.block

    @property
    def _scores(self) -> int:
        scores = _SCORES_OF_SMALL if self.is_long and self.is_small else _SCORES[self.is_long]
        return scores[0 if self.forward else 1]

    @property
    def vmem(self) -> int | None:
        """Bytes of VMEM that a long row needs. For other rows, None: the compiler's default."""
        return _VMEM if self.is_long else None

    def stages(self) -> Sequence[Sequence[tuple[int, int]]]:
        """Returns pairs of a tile and a head, those together that are worked on side by side."""
        together = max(1, self._scores // (self.keys * self.tile * self.group)) * self.group
        pairs = list(itertools.product(range(self.tiles), range(self.group)))
        return [pairs[first : first + together] for first in range(0, len(pairs), together)]

    def beginning(self) -> tuple[jax.Array, ...]:
        """Returns the largest score, sum and values of a pair before its first chunk."""
        return (
            jnp.full((1, self.tile), -jnp.inf, jnp.float32),
            jnp.zeros((1, self.tile), jnp.float32),
            jnp.zeros((self.columns, self.tile), jnp.float32),
        )

    def columns_of(self, head: int, x_WT: jax.Array) -> jax.Array:
        """Returns a head's columns of an array whose first axis is the lanes of a block."""
        return x_WT[head * self.columns : (head + 1) * self.columns]

    @property
    def parts(self) -> int:
        """Parts of a row whose keys are rotated one after another."""
        return self.length // _divisor(self.length, _CHUNKS[self.is_long])

    @property
    def lanes_of_segments(self) -> int:
        """Lanes of a block of encoded segments."""
        return segment_lanes(width=self.width, columns=self.columns)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Rows, groups of heads, blocks of queries."""
        return self.batch, self.heads // self.group, self.blocks

    def block_of_row(self) -> Any:
        """Returns the tokens of this run's block."""
        return pl.ds(pl.multiple_of(self._first(), self.block), self.block)

    def _first(self) -> Any:
        return 0 if self.blocks == 1 else pl.program_id(2) * self.block

    def rows_of(self, tile: int) -> slice:
        """Returns the queries of a tile within its block."""
        return slice(tile * self.tile, (tile + 1) * self.tile)

    def tokens_of(self, tile: int) -> Any:
        """Returns the tokens of a tile within its row."""
        return pl.ds(pl.multiple_of(self._first() + tile * self.tile, self.tile), self.tile)

    def part(self, at: Any) -> Any:
        """Returns the tokens of a part of a row."""
        size = self.length // self.parts
        return pl.ds(pl.multiple_of(at * size, size), size)

    def keys_of(self, tile: int, chunk: Any) -> Any:
        """Returns the tokens of a chunk of the keys that a tile of this run's block sees."""
        if self.window is None:
            return pl.ds(pl.multiple_of(chunk * self.keys, self.keys), self.keys)
        half = self.window // 2
        first = self._first() + tile * self.tile - half
        if self.blocks == 1:
            return pl.ds(min(max(first, 0), self.length - self.keys), self.keys)
        step = math.gcd(self.tile, half)
        place = jnp.clip(first // step, 0, (self.length - self.keys) // step)
        return pl.ds(pl.multiple_of(place * step, step), self.keys)

    def band_of(self, tile: int) -> Any:
        """Returns the entry of `bands` for a tile of this run's block."""
        place = self._first() // self.tile + tile
        last = self.length // self.tile - 1
        if self.blocks == 1:
            return 0 if place == 0 else 2 if place == last else 1
        return jnp.where(place == 0, 0, jnp.where(place == last, 2, 1))

    def bands(self) -> np.ndarray:
        """Returns what is added to the scores: float32 [3, keys, tile].

        Entry 0 is of the first tile, 1 of those in the middle, and 2 of the last one, whose chunks
        of keys begin and end with the row. In causal attention, every chunk ends with its tile.
        """
        if self.window is None:
            return np.zeros((1, 8, LANES), np.float32)
        assert self.window <= WIDEST_WINDOW
        half, keys, tile = self.window // 2, np.arange(self.keys)[:, None], np.arange(self.tile)
        firsts = (0, half, self.keys - self.tile)  # the tile's place in its chunk
        distances = np.stack([keys - tile - first for first in firsts])
        seen = abs(distances) <= half
        if self.causal:
            seen &= distances <= 0
        return np.where(seen, 0.0, HIDDEN).astype(np.float32)

    def order(self) -> jax.Array | None:
        """Returns the place of a query minus the place of a key in its chunk, [keys, queries].

        A query of a causal global layer sees a key if this is at least the place of the chunk. Call
        it outside of loops. Returns None if no score of this run depends on the order.
        """
        if not self.causal or self.window is not None:
            return None
        keys, queries = (
            jax.lax.broadcasted_iota(jnp.int32, (self.keys, self.tile), axis) for axis in (0, 1)
        )
        return self._first() + queries - keys

    def scratch(self, dtype: Any) -> Sequence[Any]:
        """Returns rotated keys; backward also the gradients of keys and values so far."""
        row = (self.length, self.width)
        sums = () if self.forward else (pltpu.VMEM(row, jnp.float32),) * 2
        return (pltpu.VMEM(row, dtype), *sums)

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result on one device."""
        if name == "logs":
            groups = self.heads // self.group
            sizes = (self.batch, groups, self.group, self.length)
            return jax.ShapeDtypeStruct(sizes, jnp.float32)
        if name == "slopes":
            sizes = (3, self.batch, self.length, self.heads * self.columns)
            return jax.ShapeDtypeStruct(sizes, dtype)
        return jax.ShapeDtypeStruct((self.batch, self.length, self.heads * self.columns), dtype)

    def spec(self, name: str) -> pl.BlockSpec:
        """Returns the block of an array: a row, a group of heads, and a tile of the queries."""
        block, whole, lanes = self.block, self.length, self.lanes_of_segments
        blocks = {
            "turns": ((whole, self.width), lambda b, t, i: (0, 0)),
            "bands": (self.bands().shape, lambda b, t, i: (0, 0, 0)),
            "query_segments": ((1, block, lanes), lambda b, t, i: (b, i, 0)),
            "key_segments": ((1, whole, lanes), lambda b, t, i: (b, 0, 0)),
            "queries": ((1, block, self.width), lambda b, t, i: (b, i, t)),
            "keys": ((1, whole, self.width), lambda b, t, i: (b, 0, t)),
            "slopes": ((3, 1, whole, self.width), lambda b, t, i: (0, b, 0, t)),
            "logs": ((1, 1, self.group, block), lambda b, t, i: (b, t, 0, i)),
        }
        once = name in ("turns", "bands", "key_segments")
        return pl.BlockSpec(*blocks[name], pipeline_mode=pl.Buffered(1) if once else None)


def _divisor(length: int, most: int) -> int:
    """Returns the largest number of whole registers up to `most` that divides a length."""
    return max(n for n in range(LANES, most + 1, LANES) if length % n == 0)
