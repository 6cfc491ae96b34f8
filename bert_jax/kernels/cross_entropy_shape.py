"""The blocks of the kernels of the masked pieces' loss, and the groups that rows come in."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Final

import jax
from jax.experimental import pallas as pl

from bert_jax.kernels.launch import LANES, PACKED

# Pieces of a tile. Backward less of them fit beside the gradients.
_FORWARD: Final = 512
_BACKWARD: Final = 256
# Rows that are worked on at a time: the product of some runs while the softmax of others waits.
# Forward fewer are a quarter slower on v6e, backward more a tenth on v5e.
_FORWARD_STRIP: Final = 256
_BACKWARD_STRIP: Final = 128
# Bytes of what a kernel holds. VMEM is 16 MiB on v4, and as much is given elsewhere unasked.
_VMEM: Final = 14 * 2**20
_F32: Final = 4
# Registers of rows that fit whatever the rest is: beyond, the search ends.
_MOST: Final = 256

# Statistics of the forward kernel for each row and lane: the largest logit, the sum of exponentials
# relative to it, the label's logit.
STATISTICS: Final = 3
# Operands of the backward kernel for each row: log-sum-exp, the loss's gradient, the label.
FACTS: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and settings that a kernel is compiled for.

    All rows of a group are in VMEM while tiles of pieces pass by. The grid of the forward kernel
    has all groups; a call of the backward kernel has one group.
    """

    rows: int  # of a group
    groups: int
    hidden: int  # columns of the table
    pieces: int  # rows of the table, of a device
    itemsize: int  # bytes of an activation
    cores: int  # of a device, which share the grid
    forward: bool  # else backward

    @property
    def tile(self) -> int:
        """Pieces that are worked on at a time."""
        return min(_FORWARD if self.forward else _BACKWARD, self.width)

    @property
    def width(self) -> int:
        """Pieces of the logits, whole tiles of both kernels."""
        whole = LANES if self.pieces <= _BACKWARD else _FORWARD
        return -(-self.pieces // whole) * whole

    @property
    def tiles(self) -> int:
        """Tiles of the table; the last one may reach beyond its end."""
        return -(-self.pieces // self.tile)

    @property
    def parts(self) -> int:
        """Parts of the grid, one for each core if they can be the same."""
        return self.cores if self.tiles % self.cores == 0 else 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Parts, groups of rows, and tiles of a part."""
        return self.parts, self.groups if self.forward else 1, self.tiles // self.parts

    def tile_number(self, part: Any, step: Any) -> Any:
        """Returns which tile of the table a step of the grid sees."""
        return part * self.grid[2] + step

    def strips(self) -> Sequence[tuple[int, int]]:
        """Returns (first, number) of the rows that are worked on together."""
        size = _FORWARD_STRIP if self.forward else _BACKWARD_STRIP
        firsts = range(0, self.rows, size)
        return [(first, min(size, self.rows - first)) for first in firsts]

    @property
    def held(self) -> int:
        """Bytes in VMEM, all buffers and what is kept from step to step."""
        of_tile = self.tile * self.hidden
        facts = LANES * _F32  # a row's few numbers fill a register's lanes
        if self.forward:
            of_row = self.hidden * self.itemsize + 2 * self.tile * _F32
            return self.rows * (of_row + (1 + STATISTICS) * facts) + 2 * of_tile * self.itemsize
        of_row = self.hidden * (self.itemsize + _F32) + self.tile * (2 * _F32 + self.itemsize)
        # Of several groups each adds to the table's gradient.
        of_tiles = of_tile * 2 * (self.itemsize + _F32 * (2 if self.groups > 1 else 1))
        return self.rows * (of_row + facts) + of_tiles

    @property
    def kept(self) -> Sequence[tuple[int, ...]]:
        """Sizes of what is kept from step to step, float32."""
        return [(STATISTICS, self.rows, LANES)] if self.forward else [(self.rows, self.hidden)]

    def array(self, name: str, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result."""
        groups = self.grid[1]
        sizes = {
            "logits": (groups * self.rows, self.width),
            "statistics": (self.parts, groups, STATISTICS, self.rows, LANES),
            "of_rows": (self.parts, groups, self.rows, self.hidden),
            "table": (self.pieces, self.hidden),
            "bias": (1, self.width),
        }
        return jax.ShapeDtypeStruct(sizes[name], dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the block of an array; a gradient has the block of its array.

        The kernels' first operand is the number of the first group of a call.
        """
        if name in ("statistics", "of_rows"):  # written once for a group
            return pl.BlockSpec(memory_space=pl.ANY)
        at = self.tile_number
        of_rows = {"rows": self.hidden, "labels": 1, "facts": FACTS}
        if (columns := of_rows.get(name)) is not None:
            return pl.BlockSpec(
                (self.rows, columns),
                lambda _part, group, _step, first: (first[0] + group, 0),
                pipeline_mode=pl.Buffered(1),
            )
        blocks = {
            "table": ((self.tile, self.hidden), lambda p, _group, s, _first: (at(p, s), 0)),
            "bias": ((1, self.tile), lambda p, _group, s, _first: (0, at(p, s))),
            "logits": ((self.rows, self.tile), lambda p, g, s, first: (first[0] + g, at(p, s))),
        }
        return pl.BlockSpec(*blocks[name])


def groups_of(rows: int, *, hidden: int, pieces: int, itemsize: int) -> tuple[int, int]:
    """Returns how many groups rows come in and how many rows each has, as many as VMEM allows.

    Their product is `rows` or more; what is more is padding. `hidden` is at most `widest`.
    """

    def fits(registers: int, groups: int) -> bool:
        each = registers * PACKED
        return _fits(each, groups, hidden=hidden, pieces=pieces, itemsize=itemsize)

    whole = -(-rows // PACKED)  # registers
    most = max((n for n in range(1, min(whole, _MOST) + 1) if fits(n, 2)), default=1)
    groups = 1 if whole <= _MOST and fits(whole, 1) else -(-whole // most)
    return groups, -(-whole // groups) * PACKED


def widest(*, pieces: int, itemsize: int) -> int:
    """Returns the largest hidden size that the kernels take, a multiple of 128.

    A strip of rows of that size still fits into VMEM beside a tile of the table. Groups of fewer
    rows would read the table so often that XLA's product is many times as fast.
    """
    sizes = itertools.count(LANES, LANES)
    fitting = itertools.takewhile(
        lambda hidden: _fits(_BACKWARD_STRIP, 2, hidden=hidden, pieces=pieces, itemsize=itemsize),
        sizes,
    )
    return max(fitting, default=0)


def _fits(rows: int, groups: int, *, hidden: int, pieces: int, itemsize: int) -> bool:
    """Returns whether groups of `rows` rows fit into VMEM in both kernels."""
    shapes = (
        Shape(
            rows=rows,
            groups=groups,
            hidden=hidden,
            pieces=pieces,
            itemsize=itemsize,
            cores=1,
            forward=forward,
        )
        for forward in (True, False)
    )
    return all(shape.held <= _VMEM for shape in shapes)
