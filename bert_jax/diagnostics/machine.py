"""Checks of this host: versions of Python and libraries, memory, and disk space."""

import os
import platform
import shutil
import threading
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from etils import epath
from packaging.requirements import Requirement

from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.errors import UserError, first_line
from bert_jax.files.remote import is_remote
from bert_jax.parallel.memory import describe_bytes, host_memory

_VERSIONS: Final = (
    *("bert-jax", "jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "grain"),
    *("tensorflow-datasets", "tokenizers", "sentencepiece", "numpy"),
)
_OPTIONAL: Final = frozenset({"libtpu", "tensorflow-datasets"})

# Memory that a run needs, mostly for JAX and its libraries and for loader workers.
_MEMORY_BYTES: Final = 4 * 2**30
# Shared memory that loader workers need for batches. Docker's default is 64 MiB.
_SHARED_MEMORY_BYTES: Final = 2**30

# BERT-Base has 110 million parameters with two moments each, and 4 bytes per number.
_BASE_CHECKPOINT_BYTES: Final = 110_000_000 * 3 * 4
_KEPT_CHECKPOINTS: Final = 3  # the newest, the best, and the one being written
# Limit for a bucket's answer: without credentials, a client retries for minutes.
_REMOTE_SECONDS: Final = 60


def check_versions() -> Iterator[Finding]:
    """Compares installed versions with the requirements of this package."""
    yield ok("python", f"{platform.python_version()} on {platform.platform()}")
    try:
        texts = metadata.requires("bert-jax") or []
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        texts = []
    requirements = {each.name: each.specifier for each in map(Requirement, texts)}
    for name in _VERSIONS:
        allowed = requirements.get(name)
        if (found := installed(name)) is None:
            if name not in _OPTIONAL:
                missing = "not installed. Run pip install . in the checkout of bert_jax."
                yield problem(name, missing)
        elif allowed is None or allowed.contains(found, prereleases=True):
            yield ok(name, found)
        else:
            yield problem(name, f"found {found}, allowed: {allowed}")


def installed(name: str) -> str | None:
    """Returns the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_memory() -> Iterator[Finding]:
    """Compares free memory and shared memory with the needs of a run."""
    memory = host_memory()
    if memory.holds(_MEMORY_BYTES):
        yield ok("memory", memory.describe())
    else:
        needed = describe_bytes(_MEMORY_BYTES)
        yield warn("memory", f"{memory.describe()}; a run needs about {needed}")
    shared = Path("/dev/shm")
    if shared.is_dir() and (free := shutil.disk_usage(shared).free) < _SHARED_MEMORY_BYTES:
        yield warn(
            "shared memory",
            f"{free / 2**20:.0f} MiB free in {shared}, but loader workers need it for batches. Use "
            "docker run --shm-size=2g, or loader.workers=0.",
        )


def check_run_dir(run_dir: str, *, checkpoint_bytes: int | None = None) -> list[Finding]:
    """Checks that a run directory is writable and that its disk has enough space.

    Writes a small file and deletes it. If the directory does not exist, checks its nearest parent.

    Args:
        run_dir: a local directory or a gs:// URL.
        checkpoint_bytes: size of one checkpoint. Default: the size for BERT-Base.
    """
    if is_remote(run_dir):
        return [_check_remote(run_dir)]
    whole = folder = Path(run_dir).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return [problem("run directory", f"{folder} is a file, so {run_dir} cannot be created")]
    try:
        _write_and_delete(epath.Path(folder))
    except OSError as error:
        return [problem("run directory", f"cannot write to {folder}: {error.strerror or error}")]
    where = "written" if folder == whole else f"created in {folder}"
    return [
        ok("run directory", f"{run_dir} can be {where}"),
        _check_space(folder, checkpoint_bytes),
    ]


def _check_space(folder: Path, checkpoint_bytes: int | None) -> Finding:
    free, size = shutil.disk_usage(folder).free, checkpoint_bytes or _BASE_CHECKPOINT_BYTES
    each = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
    whose = "this model" if checkpoint_bytes else "BERT-Base"
    text = (
        f"{free / 1e9:.1f} GB free in {folder}, "
        f"room for {free // size} checkpoints of {whose} ({each} each)"
    )
    if free >= _KEPT_CHECKPOINTS * size:
        return ok("disk", text)
    # If the model's size is unknown, only warn, because the needed space is a guess.
    finding = problem if checkpoint_bytes else warn
    return finding("disk", f"{text}. A run needs {_KEPT_CHECKPOINTS}.")


def _check_remote(run_dir: str) -> Finding:
    scheme = run_dir.partition("://")[0]
    if scheme != "gs":
        return problem("run directory", f"found {scheme}://, allowed: a local directory or gs://")
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            _write_and_delete(epath.Path(run_dir))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_REMOTE_SECONDS)
    if thread.is_alive():
        return problem("run directory", f"no answer from {run_dir} within {_REMOTE_SECONDS} s")
    for error in errors:
        if isinstance(error, UserError):
            return problem("run directory", str(error))
        reason = f"{type(error).__name__}: {first_line(error)}"
        return problem("run directory", f"cannot write to {run_dir}: {reason}")
    return ok("run directory", f"{run_dir} can be written")


def _write_and_delete(folder: epath.Path) -> None:
    file = folder / f".bert_jax_doctor_{os.getpid()}_{uuid.uuid4().hex}"
    try:
        file.write_bytes(b"bert_jax")
        if file.read_bytes() != b"bert_jax":
            raise OSError(f"{file} has other bytes than were written")
    finally:
        file.unlink(missing_ok=True)
