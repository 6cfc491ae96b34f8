"""Which part of every batch a host makes."""

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class HostShare:
    """The contiguous part ``index`` of ``count`` equal parts of every batch; by default, all of it.

    The parts are those of hosts that make different rows. They may be fewer than the processes, see
    `bert_jax.parallel.mesh.process_share`.
    """

    index: int = 0
    count: int = 1

    def part(self, size: int) -> slice:
        """Returns this host's rows of a batch: index 1 of 2, ``8`` -> ``slice(4, 8)``.

        ``size``, the rows of the global batch, is a multiple of ``count``.
        """
        rows = size // self.count
        return slice(self.index * rows, (self.index + 1) * rows)


ONE_HOST: Final = HostShare()
