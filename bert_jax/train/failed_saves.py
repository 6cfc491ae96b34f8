"""What a failed save leaves behind in Orbax's threads, which would bury the line that says so.

When one array cannot be written, Orbax gives up, and closes its event loop, while the others are
under way. Each of them then ends in a traceback: Python's `asyncio` logs that nobody asked for its
error, and TensorStore's callback finds the loop closed. The checkpointer has told the one error
that counts.
"""

import functools
import logging
import sys
import traceback
import warnings
from typing import Final

# Of the directory that Orbax writes to before the checkpoint gets its name.
_UNFINISHED: Final = ".orbax-checkpoint-tmp"


@functools.cache
def quieten_failed_saves() -> None:
    """Keeps those tracebacks, and no others, from standard error; once in a process."""
    logging.getLogger("asyncio").addFilter(_is_news)
    warnings.filterwarnings("ignore", "coroutine 'async_serialize_from_host", RuntimeWarning)
    others = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if not _found_the_loop_closed(raised):
            others(raised)

    sys.unraisablehook = hook


def _is_news(record: logging.LogRecord) -> bool:
    """Says whether a record of asyncio's is anything but the error of an array not written."""
    error = record.exc_info[1] if record.exc_info else None
    unasked = "exception was never retrieved" in record.getMessage()
    return not (unasked and _UNFINISHED in str(error))


def _found_the_loop_closed(raised: "sys.UnraisableHookArgs") -> bool:
    """Says whether it was a callback from another library that came after the loop's end."""
    if raised.object is not None or str(raised.exc_value) != "Event loop is closed":
        return False
    frames = traceback.extract_tb(raised.exc_traceback)
    return bool(frames) and frames[0].name == "call_soon_threadsafe"
