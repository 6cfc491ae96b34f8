"""Which part of every batch a host makes."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class HostShare:
    """The contiguous part ``index`` of ``count`` equal parts of every batch; by default, all of it.

    Hosts may share a part, see `bert_jax.parallel.mesh.process_share`.
    """

    index: int = 0
    count: int = 1

    def part(self, size: int) -> slice:
        """Returns this host's rows of a global batch of ``size``: index 1 of 2, 8 -> ``4:8``."""
        rows = size // self.count
        return slice(self.index * rows, (self.index + 1) * rows)


ONE_HOST: Final = HostShare()
