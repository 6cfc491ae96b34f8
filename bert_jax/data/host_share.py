"""The part of every batch that one host loads."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class HostShare:
    """Part ``index`` of ``count`` equal, contiguous parts of every batch.

    The default is the whole batch. Hosts that differ only along the tensor axis load the same part;
    see `bert_jax.parallel.mesh.process_share`.
    """

    index: int = 0
    count: int = 1

    def part(self, size: int) -> slice:
        """Returns this host's rows of a global batch: part 1 of 2, size 8 -> ``4:8``."""
        rows = size // self.count
        return slice(self.index * rows, (self.index + 1) * rows)


ONE_HOST: Final = HostShare()
