"""Compiles equal programs once, shows progress, and caches programs in files."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar, cast

import filelock
import jax
from etils import epath

from bert_jax.errors import UserError, first_line
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import user_cache
from bert_jax.narration import doing
from bert_jax.parallel.section import CompilationCacheSection

# JAX's names of the levels 0 to 3 of TF_CPP_MIN_LOG_LEVEL.
_LOG_LEVELS: Final = ("INFO", "WARNING", "ERROR", "CRITICAL")

# Number of functions that `made_once` caches for each decorated function, with their compiled
# programs. A run needs one step function per phase. A program takes 10 to 100 MB of a TPU's memory.
FUNCTIONS_KEPT: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Caches the functions that `make` returns, so that JAX compiles them only once.

    `jax.jit` caches programs by the identity of the function, so it would trace and compile a new
    closure for each run or seed.

    The arguments must include everything that the made function depends on. They must be hashable
    and immutable; arrays are not allowed. The cache keeps the last `FUNCTIONS_KEPT` functions. When
    the cache drops a function, JAX frees the function's programs.
    """
    return cast(Callable[P, T], functools.lru_cache(maxsize=FUNCTIONS_KEPT)(make))


_UNDER_WAY: Final[list[str]] = []  # names of the programs that are being compiled


def is_compiling() -> bool:
    """Returns whether any thread is in a block of `compiling`."""
    return bool(_UNDER_WAY)


@contextlib.contextmanager
def quiet_cpp() -> Iterator[None]:
    """Suppresses all but fatal lines of JAX's C++ log; errors reach Python as exceptions."""
    _set_cpp_level("CRITICAL")
    try:
        yield
    finally:
        level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
        _set_cpp_level(_LOG_LEVELS[int(level) if level in ("0", "1", "2", "3") else 1])


def _set_cpp_level(level: str) -> None:
    option = "jax_logging_level"
    before = getattr(jax.config, option)
    jax.config.update(option, level)
    jax.config.update(option, before)  # restores only the level of the Python log


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Shows a line with elapsed seconds while the block compiles or loads a program.

    `what` names the program: ``the step (32 × 128 tokens)``. The watchdog does not limit the
    block's time, and XLA's banners ("Very slow compile?") are suppressed.
    """
    with doing(f"compiling {what}", at_once=True), quiet_cpp():
        _UNDER_WAY.append(what)
        try:
            yield
        finally:
            _UNDER_WAY.remove(what)


# Names of JAX's files (jax/_src/lru_cache.py).
_LOCK, _ENTRY, _LAST_USED = ".lockfile", "-cache", "-atime"
_LOCK_SECONDS: Final = 10
# Programs that compile faster are not cached. JAX's default is one second, but a small model's step
# compiles faster on a CPU.
_SHORTEST_SECONDS: Final = 0.2
# Size limit of a local directory: a few hundred programs. JAX cannot limit a directory in a bucket.
MAX_BYTES: Final = 10 * 10**9


def use_compilation_cache(section: CompilationCacheSection | None) -> None:
    """Sets up JAX's compilation cache, which later processes read.

    Call it before the first compilation. If the section is None, disables the cache. If `directory`
    is None, keeps the directory that ``JAX_COMPILATION_CACHE_DIR`` or the caller has set. Without
    such a directory, uses the user's cache directory; with several CPU devices, no cache. Processes
    of one host may share a directory, because JAX locks a directory of limited size.

    Raises UserError if the named directory cannot be written to.
    """
    if section is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if section.directory is None:
        if getattr(jax.config, "jax_compilation_cache_dir") is not None:  # noqa: B009 (untyped)
            return
        if getattr(jax.config, "jax_num_cpu_devices") > 1:  # noqa: B009 (untyped)
            # With cached programs, XLA's CPU devices have started collectives in different orders
            # and waited for one another until XLA aborted.
            jax.config.update("jax_enable_compilation_cache", False)
            return
    directory = section.directory or str(user_cache("xla"))
    bounded = not is_remote(epath.Path(directory))
    try:
        epath.Path(directory).mkdir(parents=True, exist_ok=True)
        if bounded:
            _remove_unfinished(directory)
    except OSError as error:
        if section.directory is None:  # the home directory is missing or read-only
            return
        raise UserError(
            "compilation_cache.unwritable",
            f"cannot write to {directory} ({first_line(error)}). Use a writable directory.",
            place="mesh.compilation_cache.directory",
        ) from error
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES if bounded else -1)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)


def _remove_unfinished(directory: str) -> None:
    """Removes incomplete entries, left by killed processes.

    Each entry has a file with the time of its last use, which is written last. JAX would neither
    read nor replace an entry without this file.
    """
    root = epath.Path(directory)
    with (
        contextlib.suppress(filelock.Timeout),
        filelock.FileLock(os.fspath(root / _LOCK), timeout=_LOCK_SECONDS),
    ):
        names = {path.name for path in root.iterdir()}
        for ending, other in ((_ENTRY, _LAST_USED), (_LAST_USED, _ENTRY)):
            for name in names:
                if name.endswith(ending) and name.removesuffix(ending) + other not in names:
                    (root / name).unlink(missing_ok=True)
