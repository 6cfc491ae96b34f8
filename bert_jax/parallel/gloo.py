"""Gloo, the library of collective operations between the CPUs of several processes."""

import functools
import os
import sys
import tempfile
from typing import Final

from jax.experimental import multihost_utils

_STANDARD_OUTPUT: Final = 1
_ITS_LINES: Final = b"[Gloo] "


@functools.cache
def connect_cpus() -> None:
    """Connects the CPUs of all processes by a first collective operation; all must call it.

    Gloo prints a line about the connection to standard output, in C++. This function drops that
    line and keeps everything else that is printed meanwhile.
    """
    sys.stdout.flush()
    kept = os.dup(_STANDARD_OUTPUT)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), _STANDARD_OUTPUT)
        try:
            multihost_utils.sync_global_devices("connect")
        finally:
            sys.stdout.flush()
            os.dup2(kept, _STANDARD_OUTPUT)
            os.close(kept)
            printed.seek(0)
            lines = [line for line in printed if not line.startswith(_ITS_LINES)]
            os.write(_STANDARD_OUTPUT, b"".join(lines))
