"""The version. This module imports no other."""

from typing import Final

__version__: Final = "0.1.0"
