"""The compiler's own files of a program, and its message when it refuses one.

The compiler schedules a program and assigns memory first, and then generates code. Code generation
is most of a compilation and only adds `estimated_cycles` to the program. No option leaves it out.
`compile_quickly` therefore compiles in a thread, and the process ends once the first part is done.
"""

import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

import jax

from bert_jax.parallel.accelerators import GIB

# The compiler writes these files one after the other: when one is there, those before are complete.
_SCHEDULED: Final = "after_optimizations"
_BUFFERS: Final = "after_optimizations-buffer-assignment"
_LAST_BEFORE_CODE: Final = "after_optimizations_after_buffer_assignment"
_CODED: Final = "after_codegen"
_POLL_SECONDS: Final = 0.05

# allocation 492: size 467812864, page 0, preallocated-temp:
# Allocations outside of HBM have a color. Thread-local ones are part of another allocation.
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), page \d+, (.*)$", re.MULTILINE)

# How libtpu 0.0.51 refuses temporaries alone, and a whole program.
_SIZE = r"([\d.]+)([KMGT]?)"
_TOO_LARGE = (
    re.compile(rf"temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


class CompiledProgram(NamedTuple):
    """A program as the compiler describes it."""

    text: str  # HLO, in the order in which it runs
    arguments: int  # bytes of a device's HBM; the quick form includes new results
    temporaries: int  # bytes of a device's HBM, the same in both forms
    total: int  # bytes with arguments, and with results that do not overwrite an argument


def compile_exactly(lowered: jax.stages.Lowered, folder: Path) -> CompiledProgram:
    """Compiles a program, code included; the text has `estimated_cycles`.

    The compiler writes its files to `folder`, which is empty. It raises JaxRuntimeError if it
    refuses the program.
    """
    sizes = lowered.compile(_options(folder)).memory_analysis()
    assert sizes is not None  # only some backends have none
    # `peak_memory_in_bytes` includes buffers on the chip, and less than all temporaries, which are
    # reserved as a whole.
    arguments, temporaries = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    total = arguments + temporaries + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    # `Compiled.as_text` is not used: jaxlib 0.10.2 cannot read libtpu 0.0.51's programs for v6e.
    return CompiledProgram(read_coded(folder), arguments, temporaries, total)


def read_coded(folder: Path) -> str:
    """Returns the HLO text with `estimated_cycles` from a folder that the compiler wrote to."""
    return _read(folder, _CODED)


def compile_quickly(lowered: jax.stages.Lowered, folder: Path) -> CompiledProgram:
    """Compiles up to code generation, which continues in a thread: end the process soon.

    Files and errors are as of `compile_exactly`; ValueError: the files have an unknown form.
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


def memory_refused(message: str) -> tuple[int, int] | None:
    """Returns the bytes of HBM needed at least and those there are; None for another message."""
    for one in _TOO_LARGE:
        if found := one.search(message):
            needed, available = found.groups()[:2], found.groups()[2:]
            return _bytes(*needed), _bytes(*available)
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit.upper()])


def _options(folder: Path) -> dict[str, str | bool]:
    return {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}


def _read(folder: Path, name: str) -> str:
    """Returns the largest file of a name; the others are of small modules, such as a constant's."""
    found = max(folder.glob(f"*.{name}.txt"), key=lambda path: path.stat().st_size, default=None)
    if found is None:
        raise ValueError(f"the compiler wrote no file {name}")
    return found.read_text(encoding="utf-8")
