"""malloc's large pages, which XLA's CPU client gains a fifth by."""

import os
import sys

LARGE_PAGES = "glibc.malloc.hugetlb=1"


def with_large_pages(module: str) -> None:
    """Starts this process again with large pages: glibc reads the setting at the start.

    Args:
        module: what is running, as `python -m` takes it.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = LARGE_PAGES
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
