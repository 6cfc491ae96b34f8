"""The vector registers that every kernel's blocks are cut for: the same on v4, v5e, v5p and v6e."""

from typing import Final

LANES: Final = 128  # columns of a register
SUBLANES: Final = 8  # rows of a register of float32
PACKED: Final = 16  # rows of a register of bfloat16
