"""What the compiler says of a program that needs more HBM than a device has."""

import re
from typing import Final

from bert_jax.parallel.accelerators import GIB

# As libtpu 0.0.51 says it of temporaries alone, and of a whole program.
_SIZE = r"([\d.]+)([KMGT]?)"
_TOO_LARGE = (
    re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


def memory_refused(message: str) -> tuple[int, int] | None:
    """Returns the bytes of HBM needed at least and those there are; None for another message."""
    found = next((match for one in _TOO_LARGE if (match := one.search(message))), None)
    return found and (_bytes(found[1], found[2]), _bytes(found[3], found[4]))


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.upper()])
