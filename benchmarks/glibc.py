"""Switches on malloc's large pages, which make XLA's CPU client a fifth faster."""

import os
import sys

LARGE_PAGES = "glibc.malloc.hugetlb=1"


def with_large_pages(module: str) -> None:
    """Restarts this process with large pages, because glibc reads the setting only at start.

    Args:
        module: name of the running module, for `python -m`.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = LARGE_PAGES
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
