"""Block shapes of the cross-entropy kernels, and the groups of rows that fit into VMEM."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.experimental import pallas as pl

from bert_jax.kernels.pallas_call import LANES, PACKED

# Pieces per tile of the forward kernel.
_FORWARD: Final = 512
# Rows per strip of the forward kernel. The product of one strip overlaps with the softmax of
# another. Smaller strips are 25% slower on v6e.
_FORWARD_STRIP: Final = 256
_F32: Final = 4
_PARTS: Final = 3  # bfloat16 parts of a float32 operand

# Number of statistics per row and lane in the forward kernel: the largest logit, the sum of
# exponentials relative to it, and the label's logit.
STATISTICS: Final = 3
# Operands per row of the backward kernel: log-sum-exp, the gradient of the loss, and the label.
FACTS: Final = 3


class Limits(NamedTuple):
    """Sizes that depend on a core's VMEM. The default is for v4, with 16 MiB."""

    bytes: int = 14 * 2**20  # maximum bytes of a kernel
    tile: int = 256  # pieces per tile of the backward kernel, whose gradients need more space
    # Rows per strip of the backward kernel. With tiles of 256 pieces, 256 rows are 10% slower on
    # v5e. With tiles of 512 pieces, they are 5 to 10% faster on v5e and v6e.
    strip: int = 128
    rows: int = 4096  # maximum rows of a group

    @classmethod
    def of(cls, vmem: int | None) -> "Limits":
        """Returns the limits of a core with `vmem` bytes of VMEM; None for the default.

        With more VMEM, the rows of a device are one group, so that the backward kernel reads the
        table once and does not add to its gradient in HBM.
        """
        if vmem is None or vmem < 64 * 2**20:
            return cls()
        return cls(bytes=vmem * 5 // 8, tile=512, strip=256, rows=8192)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and settings of a kernel on one device.

    All rows of a group stay in VMEM while the kernel iterates over tiles of pieces. A call of the
    forward kernel processes all groups, and a call of the backward kernel one group.
    """

    rows: int  # rows of a group
    groups: int  # number of groups
    hidden: int  # columns of the table
    pieces: int  # rows of the table on a device
    itemsize: int  # bytes of an activation
    cores: int  # cores of a device
    forward: bool  # whether this is the forward kernel
    limits: Limits

    @property
    def tile(self) -> int:
        """Pieces per tile."""
        return min(_FORWARD if self.forward else self.limits.tile, self.width)

    @property
    def width(self) -> int:
        """Columns of the logits: pieces padded to whole tiles of both kernels."""
        whole = LANES if self.pieces <= _FORWARD // 2 else _FORWARD
        return -(-self.pieces // whole) * whole

    @property
    def tiles(self) -> int:
        """Number of tiles of the table. The last tile may extend beyond the table."""
        return -(-self.pieces // self.tile)

    @property
    def parts(self) -> int:
        """Parts of the grid: one per core if the tiles divide equally, otherwise one."""
        return self.cores if self.tiles % self.cores == 0 else 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of parts, of groups of rows per part, and of tiles per part."""
        return self.parts, self.groups if self.forward else 1, self.tiles // self.parts

    def tile_number(self, part: Any, step: Any) -> Any:
        """Returns the index of the tile that a part processes in a grid step."""
        return part * self.grid[2] + step

    def strips(self) -> Sequence[tuple[int, int]]:
        """Returns (first row, number of rows) of each strip."""
        size = _FORWARD_STRIP if self.forward else self.limits.strip
        firsts = range(0, self.rows, size)
        return [(first, min(size, self.rows - first)) for first in firsts]

    @property
    def held(self) -> int:
        """Bytes in VMEM: all buffers and scratch arrays.

        The compiler keeps the parts of a float32 tile, one for each bfloat16 pass, in VMEM.
        """
        of_tile = self.tile * self.hidden
        parts = _PARTS * _F32 * of_tile if self.itemsize == _F32 else 0
        facts = LANES * _F32  # a few numbers per row take all lanes of a register
        if self.forward:
            of_row = self.hidden * self.itemsize + 2 * self.tile * _F32
            of_rows = self.rows * (of_row + (1 + STATISTICS) * facts)
            return of_rows + 2 * of_tile * self.itemsize + parts
        of_row = self.hidden * (self.itemsize + _F32) + self.tile * (2 * _F32 + self.itemsize)
        # With several groups, the previous gradient of the table is an operand.
        of_tiles = of_tile * 2 * (self.itemsize + _F32 * (2 if self.groups > 1 else 1))
        return self.rows * (of_row + facts) + of_tiles + parts

    @property
    def vmem(self) -> int | None:
        """Limit of VMEM in bytes, or None for the compiler's default, 16 MiB.

        The compiler needs up to 1.3 times the bytes in `held`. A larger limit would take VMEM from
        other arrays of the program.
        """
        needed = self.held * 3 // 2
        return needed if needed > 2**24 and self.limits != Limits() else None

    @property
    def kept(self) -> Sequence[tuple[int, ...]]:
        """Shapes of the scratch arrays that persist between grid steps, float32."""
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
        """Returns the block of an array. A gradient has the block of its array.

        The first operand of a kernel is the index of the first group in the call.
        """
        if name in ("statistics", "of_rows"):  # copied to HBM by the kernel
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


def groups_of(
    rows: int, *, hidden: int, pieces: int, itemsize: int, limits: Limits
) -> tuple[int, int]:
    """Returns (number of groups, rows per group), with as many rows per group as fit into VMEM.

    Their product is at least `rows`; the excess is padding. `hidden` must be at most `widest`.
    """

    def fits(registers: int, groups: int) -> bool:
        sizes = {"hidden": hidden, "pieces": pieces, "itemsize": itemsize}
        return _fits(registers * PACKED, groups, limits=limits, **sizes)

    whole, allowed = -(-rows // PACKED), limits.rows // PACKED  # registers
    most = max((n for n in range(1, min(whole, allowed) + 1) if fits(n, 2)), default=1)
    groups = 1 if whole <= allowed and fits(whole, 1) else -(-whole // most)
    return groups, -(-whole // groups) * PACKED


def widest(*, pieces: int, itemsize: int) -> int:
    """Returns the largest hidden size that the kernels support, a multiple of 128.

    At this size, one strip of rows fits into VMEM of v4 together with a tile of the table. Smaller
    groups would read the table too often, and XLA's product would be many times faster.
    """
    sizes, limits = itertools.count(LANES, LANES), Limits()
    fitting = itertools.takewhile(
        lambda hidden: _fits(
            limits.strip, 2, hidden=hidden, pieces=pieces, itemsize=itemsize, limits=limits
        ),
        sizes,
    )
    return max(fitting, default=0)


def _fits(
    rows: int, groups: int, *, hidden: int, pieces: int, itemsize: int, limits: Limits
) -> bool:
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
            limits=limits,
        )
        for forward in (True, False)
    )
    return all(shape.held <= limits.bytes for shape in shapes)
