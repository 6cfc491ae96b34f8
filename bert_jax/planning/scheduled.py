"""A program as the compiler has it before it generates code: scheduled, with memory assigned.

Generating code is most of a compilation and changes nothing of a program but the cycles that its
operations are given. The compiler has no option that leaves it out, but it can be asked to write
what it has before. So it runs in a thread of its own, and the process ends when that is there.
"""

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import jax

# One is written behind the other, so each that comes before the last is whole when that is there.
_LAST: Final = "after_optimizations_after_buffer_assignment"
_TEXT: Final = "after_optimizations"
_BUFFERS: Final = "after_optimizations-buffer-assignment"
# allocation 492: size 467812864, page 0, preallocated-temp:
# Those of other memories have a color; what is local to a computation lies in the rest already.
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), page \d+, (.*)$", re.MULTILINE)
_LOCAL: Final = "thread-local"
_TEMPORARY: Final = "preallocated-temp"
_POLL: Final = 0.05  # seconds


class Scheduled(NamedTuple):
    """A program before code is generated for it."""

    text: str  # HLO, in the order in which it runs
    temporaries: int  # bytes of a device's HBM, as the compiler reports it of the whole too
    total: int  # with what the step is given, and results that do not overwrite it


def schedule(lowered: jax.stages.Lowered, folder: Path) -> Scheduled:
    """Compiles up to code generation, which goes on in a thread: end the process soon.

    `folder` is empty, for what the compiler writes.

    Raises:
        jax.errors.JaxRuntimeError: the compiler refused the program.
    """
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}
    done: Future[None] = Future()

    def compile_all() -> None:
        try:
            lowered.compile(options)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=compile_all, daemon=True).start()
    while not done.done() and not list(folder.glob(f"*.{_LAST}.txt")):
        time.sleep(_POLL)
    if done.done():
        done.result()
    return read_scheduled({each: _read(folder, each) for each in (_TEXT, _BUFFERS)})


def read_scheduled(texts: Mapping[str, str]) -> Scheduled:
    """Returns what the compiler's files say, by the last part of their names.

    Raises:
        ValueError: they do not say it.
    """
    found = [(int(size), of) for size, of in _ALLOCATION.findall(texts[_BUFFERS])]
    if not found:
        raise ValueError(f"no buffers in the compiler's file: {texts[_BUFFERS][:200]!r}")
    return Scheduled(
        text=texts[_TEXT],
        temporaries=sum(size for size, of in found if of.startswith(_TEMPORARY)),
        total=sum(size for size, of in found if _LOCAL not in of),
    )


def _read(folder: Path, name: str) -> str:
    # Of several modules, such as a constant's, the step's is the one with most to say.
    found = max(folder.glob(f"*.{name}.txt"), key=lambda path: path.stat().st_size)
    return found.read_text(encoding="utf-8")
