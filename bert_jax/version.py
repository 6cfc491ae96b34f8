"""The version, where reading it imports nothing else."""

from typing import Final

__version__: Final = "0.1.0"
