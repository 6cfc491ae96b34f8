"""Protocol of a dataset that the loader can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class ExampleSequence(Protocol):
    """Random access to examples. Picklable: a worker process opens the files itself."""

    @property
    def fingerprint(self) -> str:
        """Identity of the content: equal if every index has the same example."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, an integer type ``[len(self)]``."""
        ...

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int], /) -> list[Any]:
        """Returns examples in the order of ``indices``, as the row transform takes them."""
        ...
