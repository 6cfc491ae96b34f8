"""What the attention kernels are compiled for: the blocks they see and the order of their work."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

LANES: Final = 128
# Scores that are worked on at a time: what is made of them must fit into VMEM, 16 MiB on v4.
_SCORES: Final = 2**19
# More fill the units of the core no better, and each is code of its own.
_MOST_ROWS: Final = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a kernel is compiled for."""

    batch: int  # rows of a device
    length: int  # tokens of a row, as the caller has them
    heads: int  # of a device
    columns: int  # of a head
    rate: float  # of dropout; 0 draws nothing

    @property
    def padded(self) -> int:
        """Tokens of a row in the kernel: whole vector registers."""
        return -(-self.length // LANES) * LANES

    @property
    def width(self) -> int:
        """Lanes of a block: whole heads, and whole registers or all that there is."""
        whole = math.lcm(self.columns, LANES)
        return whole if self.heads * self.columns % whole == 0 else self.heads * self.columns

    @property
    def group(self) -> int:
        """Heads of a block."""
        return self.width // self.columns

    @property
    def rows(self) -> int:
        """Rows of a block: of short ones as many as keep the core's units busy.

        One head is a chain of operations, each of which waits for the one before. Those of other
        heads and rows fill the gaps.
        """
        most = min(_MOST_ROWS, _SCORES // (self.group * self.padded**2))
        return max(n for n in range(1, max(most, 1) + 1) if self.batch % n == 0)

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of rows, and of heads."""
        return self.batch // self.rows, self.heads // self.group

    @property
    def lanes_of_segments(self) -> int:
        """Lanes of a block of segments; one head alone has them beside it."""
        return self.width if self.group > 1 else LANES

    def stages(self) -> Sequence[Sequence[tuple[int, int]]]:
        """Returns (row, head) of a block, those together that are worked on side by side."""
        heads = list(itertools.product(range(self.rows), range(self.group)))
        together = max(_SCORES // self.padded**2, 1)
        return [heads[first : first + together] for first in range(0, len(heads), together)]

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns what a result looks like on one device."""
        width = self.heads * self.columns
        sizes = {
            "row": (self.batch, self.padded, width),
            "slopes": (3, self.batch, self.padded, width),
            "logs": (self.batch, self.heads // self.group, self.group, self.padded),
            "sums": (3, self.batch, 1, width),
        }
        exact = name in ("logs", "sums")
        return jax.ShapeDtypeStruct(sizes[name], jnp.float32 if exact else dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the part of an array that one run of a kernel sees: rows, a group of heads."""
        rows, lanes = self.rows, self.lanes_of_segments
        blocks = {
            "words": ((2, rows, 1, self.group, self.padded), lambda b, t: (0, b, t, 0, 0)),
            "segments": ((2, rows, self.padded, lanes), lambda b, _: (0, b, 0, 0)),
            "row": ((rows, self.padded, self.width), lambda b, t: (b, 0, t)),
            "slopes": ((3, rows, self.padded, self.width), lambda b, t: (0, b, 0, t)),
            "logs": ((rows, 1, self.group, self.padded), lambda b, t: (b, t, 0, 0)),
            "sums": ((3, rows, 1, self.width), lambda b, t: (0, b, 0, t)),
        }
        return pl.BlockSpec(*blocks[name])
