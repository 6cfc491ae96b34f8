"""Compiling: once for equal programs, with a line, without XLA's banners, cached in files."""

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

# Values of TF_CPP_MIN_LOG_LEVEL, by their numbers there.
_LOG_LEVELS: Final = ("INFO", "WARNING", "ERROR", "CRITICAL")

# Functions of one maker that are kept with their programs: a run needs a step for each phase, and
# a program of a TPU takes some 10 to 100 MB of each chip.
FUNCTIONS_KEPT: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Decorates what makes a function for JAX: equal arguments give the very same one.

    JAX knows a function by its identity: it would trace and compile the closure of the next run or
    seed again.

    The arguments must be all that the function depends on: hashable, never changed, no arrays. The
    last `FUNCTIONS_KEPT` are kept; a function that is dropped takes its programs with it.
    """
    return cast(Callable[P, T], functools.lru_cache(maxsize=FUNCTIONS_KEPT)(make))


_UNDER_WAY: Final[list[str]] = []  # what is compiled at this moment


def is_compiling() -> bool:
    """Says whether a block of `compiling` lasts, in any thread."""
    return bool(_UNDER_WAY)


@contextlib.contextmanager
def quiet_cpp() -> Iterator[None]:
    """Leaves out all but fatal lines of JAX's C++ log; errors reach Python as exceptions."""
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
    jax.config.update(option, before)  # of the Python log; NOTSET leaves the C++ log as it is


@contextlib.contextmanager
def compiling(what: str) -> Iterator[None]:
    """Shows that the block compiles or loads a program, with the seconds that it takes.

    `what` is compiled, such as ``the step (32 × 128 tokens)``. The watchdog does not count the
    block as a step that hangs. XLA's banners ("Very slow compile?") are left out.
    """
    with doing(f"compiling {what}", at_once=True), quiet_cpp():
        _UNDER_WAY.append(what)
        try:
            yield
        finally:
            _UNDER_WAY.remove(what)


# Names that JAX gives its files (jax/_src/lru_cache.py).
_LOCK, _ENTRY, _LAST_USED = ".lockfile", "-cache", "-atime"
_LOCK_SECONDS: Final = 10
# Shorter compilations are not worth a file. JAX's own bound is a second, and a small model's step
# on a CPU is below it.
_SHORTEST_SECONDS: Final = 0.2
# A local directory keeps some hundred programs; JAX bounds no directory in a bucket.
MAX_BYTES: Final = 10 * 10**9


def use_compilation_cache(section: CompilationCacheSection | None) -> None:
    """Sets up JAX's cache: what was compiled once is read from files at the next start.

    Call it before the first program is compiled. Processes of one host may share a directory: JAX
    locks it where its size is bounded. A directory set by ``JAX_COMPILATION_CACHE_DIR`` or by the
    caller's own program stays unless the section names another. Several devices that share a CPU
    have a cache only if a directory is named. Without a section the cache is switched off. Raises
    UserError if the directory that is named cannot be written to.
    """
    if section is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if section.directory is None:
        if getattr(jax.config, "jax_compilation_cache_dir") is not None:  # noqa: B009 (untyped)
            return
        if getattr(jax.config, "jax_num_cpu_devices") > 1:  # noqa: B009 (untyped)
            # In a program read from a file, XLA's CPU devices were seen to start collectives in
            # different orders, and to wait for one another until XLA aborts.
            jax.config.update("jax_enable_compilation_cache", False)
            return
    directory = section.directory or str(user_cache("xla"))
    bounded = not is_remote(epath.Path(directory))
    try:
        epath.Path(directory).mkdir(parents=True, exist_ok=True)
        if bounded:
            _remove_unfinished(directory)
    except OSError as error:
        if section.directory is None:  # a home that is not there, or read-only: go without
            return
        raise UserError(
            "compilation_cache.unwritable",
            "cannot write to {found} ({reason}). Use a writable directory.",
            place="mesh.compilation_cache.directory",
            found=directory,
            reason=first_line(error),
        ) from error
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES if bounded else -1)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)


def _remove_unfinished(directory: str) -> None:
    """Removes entries without a time of use, which is written last: a killed process left them.

    JAX would neither read nor replace such an entry.
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
