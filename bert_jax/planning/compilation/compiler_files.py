"""Reads the files that the compiler writes.

The compiler first schedules a program and assigns memory, then generates code. Code generation
takes most of the time, and only adds `estimated_cycles` to the program. No option skips it.
`compile_quickly` therefore compiles in a thread, and returns before code generation.
"""

import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import jax

# The compiler writes these files in this order. If one exists, the earlier files are complete.
_SCHEDULED: Final = "after_optimizations"
_BUFFERS: Final = "after_optimizations-buffer-assignment"
_LAST_BEFORE_CODE: Final = "after_optimizations_after_buffer_assignment"
_CODED: Final = "after_codegen"
_POLL_SECONDS: Final = 0.05

# allocation 492: size 467812864, page 0, preallocated-temp:
# libtpu 0.0.42 omits the page. Allocations outside of HBM have a color. Thread-local allocations
# are part of other allocations.
_ALLOCATION = re.compile(
    r"^allocation \d+: size (\d+), (?:page \d+, )?(?!color)(.*)$", re.MULTILINE
)


class CompiledProgram(NamedTuple):
    """A compiled program: its text and its memory."""

    text: str  # HLO in the order of execution
    arguments: int  # bytes of arguments and new results in a device's HBM
    temporaries: int  # bytes of temporaries in a device's HBM
    total: int  # bytes of arguments, temporaries, and results that do not overwrite an argument


def compile_exactly(lowered: jax.stages.Lowered, folder: Path) -> CompiledProgram:
    """Compiles a program and generates code, so that the text has `estimated_cycles`.

    The compiler writes its files to `folder`, which must be empty. Raises JaxRuntimeError if the
    compiler refuses the program.
    """
    lowered.compile(_options(folder))
    # `Compiled.as_text` is not used: with jaxlib 0.10.2 and libtpu 0.0.51, it fails for v6e.
    # `memory_analysis` is not used: of the same temporaries (4.5 MB), libtpu 0.0.42 reports 0 and
    # libtpu 0.0.50 twice the bytes.
    return read_scheduled(read_coded(folder), _read(folder, _BUFFERS))


def read_coded(folder: Path) -> str:
    """Returns the HLO text with `estimated_cycles` from a folder that the compiler wrote to."""
    return _read(folder, _CODED)


def compile_quickly(lowered: jax.stages.Lowered, folder: Path) -> CompiledProgram:
    """Compiles a program without waiting for code generation.

    Code generation continues in a thread, so the caller should end the process soon. Files and
    errors are those of `compile_exactly`. Raises ValueError if the files have an unknown format.
    """
    done: Future[None] = Future()

    def compile_all() -> None:
        try:
            lowered.compile(_options(folder))
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=compile_all, daemon=True).start()
    while not done.done() and not list(folder.glob(f"*.{_LAST_BEFORE_CODE}.txt")):
        time.sleep(_POLL_SECONDS)
    if done.done():
        done.result()
    return read_scheduled(_read(folder, _SCHEDULED), _read(folder, _BUFFERS))


def read_scheduled(text: str, buffers: str) -> CompiledProgram:
    """Returns a program from its HLO text and the compiler's report of buffers."""
    found = [(int(size), kind) for size, kind in _ALLOCATION.findall(buffers)]
    if not found:
        raise ValueError(f"no buffers in the compiler's file: {buffers[:200]!r}")
    temporaries = sum(size for size, kind in found if kind.startswith("preallocated-temp"))
    total = sum(size for size, kind in found if "thread-local" not in kind)
    return CompiledProgram(text, total - temporaries, temporaries, total)


def _options(folder: Path) -> dict[str, str | bool]:
    return {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}


def _read(folder: Path, name: str) -> str:
    """Returns the text of the largest file with a name. Smaller files are of helper modules."""
    found = max(folder.glob(f"*.{name}.txt"), key=lambda path: path.stat().st_size, default=None)
    if found is None:
        raise ValueError(f"the compiler wrote no file {name}")
    return found.read_text(encoding="utf-8")
