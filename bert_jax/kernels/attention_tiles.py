"""Block shapes of the attention kernels, and the order in which they process heads."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.pallas_call import LANES, PACKED, Order

# Score of an invisible key; its softmax is 0.
HIDDEN: Final = -(2.0**15)
CODE: Final = 32  # lanes of an encoded segment, two per bit
# Maximum number of scores per stage. Several arrays of this size must fit into VMEM (16 MiB on v4).
# The backward kernel needs more of these arrays.
_FORWARD: Final = 2**20
_BACKWARD: Final = 9 * 2**16
# Maximum queries of a tile of causal attention, unless a quarter of the row is more. A tile reads
# no key after its last query, so smaller tiles compute fewer scores.
_CAUSAL: Final = 256
# Maximum number of scores in a block of several short rows. More scores add code, but no speed.
_SCORES_OF_ROWS: Final = 2**19
_MOST_ROWS: Final = 8
# Maximum bytes of the keys in a block of several rows. Selected queries may be far fewer than keys.
_KEYS_OF_ROWS: Final = 2**19
# Rows longer than this are padded to a multiple of 256 tokens. Tiles of 128 queries are 25% slower.
_WIDE: Final = 768
# For rows longer than this, VMEM has no space to prefetch the next keys and values.
_BUFFERED_ONCE: Final = 1536
# Maximum length of rows. Keys and values of longer rows do not fit into VMEM together with scores,
# and `random_bits` has distinct words for only 2,048 rows or columns.
LONGEST: Final = 2048
# Maximum length of rows, unless a block has two heads of up to 64 columns in a two-byte dtype. In
# longer rows, spilled registers fill VMEM.
_LONGEST_OF_OTHERS: Final = 512
# Bytes of VMEM that scores by distance may use. The compiler's default is too low for long rows.
_VMEM: Final = 60 << 20
# Maximum heads × tokens and lanes × tokens by bytes of an activation, in blocks wider than 128
# lanes and in all blocks of float32. In float32, VMEM also has parts of the operands.
_MOST_TOKENS: Final = {2: 3072, 4: 1024}
_MOST_NUMBERS: Final = {2: 9 * 2**14, 4: 2**16}


def longest_rows(*, heads: int, columns: int, itemsize: int) -> int:
    """Returns the maximum length of rows, in tokens, for which the kernels compile on v4.

    Args:
        heads: number of heads on a device.
        columns: width of a head.
        itemsize: bytes of an activation.
    """
    width = _block_width(heads, columns)
    group = width // columns
    if columns > LANES:
        return 0
    if width <= LANES and itemsize == 2:
        return LONGEST if group == 2 else _LONGEST_OF_OTHERS
    tokens = min(_MOST_TOKENS[itemsize] // group, _MOST_NUMBERS[itemsize] // width)
    return min(tokens // LANES * LANES, _LONGEST_OF_OTHERS)


def _block_width(heads: int, columns: int) -> int:
    """Returns the lanes of a block: the least common multiple of 128 and a head's columns.

    If this multiple does not divide the columns on a device, a block has all heads.
    """
    whole = math.lcm(columns, LANES)
    return whole if heads * columns % whole == 0 else heads * columns


@functools.cache
def holds_code(*, width: int, columns: int) -> bool:
    """Returns whether the lanes of the other heads of a block hold an encoded segment.

    Lane n has lane ``n % CODE`` of the code. Without one of them, a head would read other segments.
    """
    starts = range(0, width, columns)
    others = ({*range(width)}.difference(range(first, first + columns)) for first in starts)
    return all(len({lane % CODE for lane in lanes}) == CODE for lanes in others)


def segment_lanes(*, width: int, columns: int) -> int:
    """Returns the lanes of encoded segments: those of a block, or 128 additional lanes."""
    return width if holds_code(width=width, columns=columns) else LANES


def padded(length: int) -> int:
    """Returns the length of a row in the kernels, padded to whole vector registers."""
    whole = LANES if length <= _WIDE else 2 * LANES
    return -(-length // whole) * whole


def padded_queries(queries: int, *, length: int) -> int:
    """Returns the number of queries of a row in the kernels.

    If at most 128 queries are selected, their number is padded to a multiple of 16, not 128. Empty
    lanes cost nothing, but padding in HBM costs bandwidth.
    """
    if queries == length or queries > LANES:
        return padded(queries)
    return -(-queries // PACKED) * PACKED


class Tile(NamedTuple):
    """A tile of queries."""

    number: int | None  # place in the row, or None if only the kernel knows it, when it runs
    keys: int  # number of keys that the tile reads, from the first key of the row on
    first_head: Any  # number of the first head of the block in its row

    @property
    def place(self) -> Any:
        """Returns the number of the tile, in a kernel."""
        return pl.program_id(2) if self.number is None else self.number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and settings of a kernel on one device."""

    batch: int  # rows on a device
    length: int  # tokens of a row before padding
    queries: int  # queries of a row before padding
    selected: bool  # whether queries have any positions; otherwise every token is a query
    heads: int  # heads on a device
    columns: int  # width of a head
    itemsize: int  # bytes of an activation
    rate: float  # dropout rate; 0 disables dropout
    causal: bool  # whether a query sees no later key
    has_keys: bool  # whether scores have a product of the query with a key of the distance
    has_queries: bool  # whether scores have a product of the key with a query of the distance
    forward: bool  # whether this is the forward kernel
    composes: bool  # whether the device emulates int32 products; see `composes_words`

    @property
    def padded(self) -> int:
        """Tokens of a row, padding included."""
        return padded(self.length)

    @property
    def padded_queries(self) -> int:
        """Queries of a row, padding included."""
        return padded_queries(self.queries, length=self.length)

    @property
    def tile(self) -> int:
        """Queries of a tile: all queries of a row, if they fit."""
        if self.padded_queries <= LANES:
            return self.padded_queries
        most = self._scores // self.padded
        if self._skips:
            most = min(most, max(_CAUSAL, self.padded // 4))
        return max(n for n in range(LANES, most + 1, LANES) if self.padded_queries % n == 0)

    @property
    def tiles(self) -> int:
        """Number of tiles of a row."""
        return self.padded_queries // self.tile

    @property
    def _skips(self) -> bool:
        """Whether tiles skip later keys. Selected queries are in any order, so they read all."""
        return self.causal and not self.selected

    @property
    def terms(self) -> int:
        """Number of terms of the scores that depend on the distance."""
        return self.has_keys + self.has_queries

    def first_query(self, tile: "Tile") -> Any:
        """Returns the first query of a tile."""
        return 0 if self.tiles == 1 else tile.place * self.tile

    def run_tile(self, body: Callable[["Tile"], None]) -> None:
        """Calls the body of a kernel for the tile of this run."""
        axis = 0 if self.terms else 1
        first_head = pl.program_id(axis) * self.group if self.heads > self.group else 0
        if not self._skips or self.tiles == 1:
            body(Tile(None, self.padded, first_head))
            return
        for number in range(self.tiles):
            tile = Tile(number, (number + 1) * self.tile, first_head)
            pl.when(pl.program_id(2) == number)(functools.partial(body, tile))

    @property
    def scores(self) -> int:
        """Number of scores of a row and head that the kernel computes."""
        whole = self.padded_queries * self.padded
        return (whole + self.tile * self.padded) // 2 if self._skips else whole

    @property
    def width(self) -> int:
        """Lanes of a block."""
        return _block_width(self.heads, self.columns)

    @property
    def group(self) -> int:
        """Number of heads in a block."""
        return self.width // self.columns

    @property
    def rows(self) -> int:
        """Number of rows in a block.

        The operations of one head depend on each other. In a block of several short rows,
        operations of other heads and rows keep the units busy.
        """
        # In the forward kernel on v4, more rows are slower.
        times = 2 if self.forward and not self.composes else 1
        # In float32, VMEM also has parts of the operands.
        most_scores = times * _SCORES_OF_ROWS // (1 if self.itemsize == 2 else 4)
        scores = self.group * self.padded * max(self.padded_queries, LANES)
        keys = self.padded * self.width * self.itemsize
        most = min(_MOST_ROWS, most_scores // scores, times * _KEYS_OF_ROWS // keys)
        return max(n for n in range(1, max(most, 1) + 1) if self.batch % n == 0)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of blocks along rows, heads and queries.

        With distances, heads come first: the kernel sums gradients of a table over all rows.
        """
        rows, groups = self.batch // self.rows, self.heads // self.group
        return (groups, rows, self.tiles) if self.terms else (rows, groups, self.tiles)

    @property
    def order(self) -> tuple[Order, Order, Order]:
        """Whether cores may split each axis of the grid."""
        return ("parallel", "arbitrary" if self.terms else "parallel", "arbitrary")

    @property
    def streams_columns(self) -> bool:
        """Whether the backward kernel streams a head's columns through the matrix unit.

        Scores then stay in the unit, and a product takes only the columns of one head, not all
        lanes of a block. For few queries, the necessary transposes cost more than they save. In
        float32, those of wide blocks do not fit into the VMEM of v4. Gradients by distance have
        only this form.
        """
        fits = self.itemsize == 2 or self.width <= LANES
        return self.terms > 0 or (fits and self.tile > LANES and self.columns < LANES)

    @property
    def lanes_of_segments(self) -> int:
        """Lanes of a block of encoded segments."""
        return segment_lanes(width=self.width, columns=self.columns)

    def stages(self) -> Sequence[Sequence[tuple[int, int]]]:
        """Returns the (row, head) pairs of a block, grouped by the stage that processes them."""
        heads = list(itertools.product(range(self.rows), range(self.group)))
        together = self._scores // (self.padded * max(self.tile, LANES))  # in whole registers
        return [heads[first : first + together] for first in range(0, len(heads), together)]

    @property
    def _scores(self) -> int:
        return _FORWARD if self.forward else _BACKWARD

    @property
    def vmem(self) -> int | None:
        """Limit of VMEM in bytes, or None for the compiler's default."""
        return _VMEM if self.terms else None

    @property
    def running(self) -> Sequence[Any]:
        """Scratch arrays of the backward kernel: gradients of keys and values summed over tiles."""
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
            "table_slopes": (1, self.terms, width, 2 * self.padded),
        }
        exact = name in ("logs", "sums", "table_slopes")
        return jax.ShapeDtypeStruct(sizes[name], jnp.float32 if exact else dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the block of an array: some rows, a group of heads, and a tile of queries."""
        rows, lanes, whole, tile = self.rows, self.lanes_of_segments, self.padded, self.tile
        blocks = {
            "query_words": ((rows, self.heads, tile), lambda b, t, i: (b, 0, i)),
            "key_words": ((rows, self.heads, whole), lambda b, t, _: (b, 0, 0)),
            "query_places": ((rows, 1, tile), lambda b, t, i: (b, 0, i)),
            "query_segments": ((rows, tile, lanes), lambda b, t, i: (b, i, 0)),
            "key_segments": ((rows, whole, lanes), lambda b, t, _: (b, 0, 0)),
            "keys": ((rows, whole, self.width), lambda b, t, _: (b, 0, t)),
            "queries": ((rows, tile, self.width), lambda b, t, i: (b, i, t)),
            "slopes": ((3, rows, whole, self.width), lambda b, t, _: (0, b, 0, t)),
            "query_slopes": ((1, rows, tile, self.width), lambda b, t, i: (0, b, i, t)),
            "key_slopes": ((2, rows, whole, self.width), lambda b, t, _: (0, b, 0, t)),
            "logs": ((rows, 1, self.group, tile), lambda b, t, i: (b, t, 0, i)),
            "sums": ((3, rows, 1, self.width), lambda b, t, _: (0, b, 0, t)),
            "table": ((2 * whole, self.width), lambda b, t, _: (0, t)),
            "turned_table": ((self.width, 2 * whole), lambda b, t, _: (t, 0)),
            "table_slopes": ((1, self.terms, self.width, 2 * whole), lambda b, t, _: (0, 0, t, 0)),
        }
        # All heads of a row share the segments, so one buffer suffices.
        once = self.tiles > 1 and name == "key_segments"
        once |= self.padded > _BUFFERED_ONCE and name == "keys"
        once |= name in ("table", "turned_table")
        sizes, place = blocks[name]
        return pl.BlockSpec(
            sizes,
            (lambda t, b, i: place(b, t, i)) if self.terms else place,
            pipeline_mode=pl.Buffered(1) if once else None,
        )
