"""What a run directory has to offer: is it there, can it be written, how much fits."""

import os
import shutil
import threading
import uuid
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.errors import UserError, first_line
from bert_jax.files.remote import is_remote

# BERT-Base: 110 million parameters and two moments each, 4 bytes a number.
BASE_CHECKPOINT_BYTES: Final = 110_000_000 * 3 * 4

# The newest, the best, and the one being written.
KEPT_CHECKPOINTS: Final = 3

# Credentials that are not there make a client try for minutes.
_REMOTE_SECONDS: Final = 60


def check_run_dir(run_dir: str, *, checkpoint_bytes: int | None = None) -> list[Finding]:
    """Writes a small file into a run directory and deletes it, and measures the free space.

    A directory that is not there yet is not made: its nearest parent is tried instead. It is local,
    or gs://; without the bytes of one checkpoint those of BERT-Base are the measure.
    """
    if is_remote(run_dir):
        return [_check_remote(run_dir)]
    folder = Path(run_dir).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return [problem("run directory", f"{folder} is a file, so {run_dir} cannot be made")]
    try:
        _write_and_delete(epath.Path(folder))
    except OSError as error:
        return [problem("run directory", f"cannot write to {folder}: {error.strerror or error}")]
    where = f"{run_dir} can be written"
    if folder != Path(run_dir).expanduser().absolute():
        where = f"{run_dir} can be made in {folder}"
    free = shutil.disk_usage(folder).free
    return [ok("run directory", where), _check_space(folder, free, checkpoint_bytes)]


def _check_space(folder: Path, free: int, checkpoint_bytes: int | None) -> Finding:
    size = checkpoint_bytes or BASE_CHECKPOINT_BYTES
    each = f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
    whose = "this model" if checkpoint_bytes else "BERT-Base"
    text = (
        f"{free / 1e9:.1f} GB free in {folder}, "
        f"room for {free // size} checkpoints of {whose} ({each} each)"
    )
    if free >= KEPT_CHECKPOINTS * size:
        return ok("disk", text)
    # Without the model's own size, it is only likely that it does not fit.
    finding = problem if checkpoint_bytes else warn
    return finding("disk", f"{text}; {KEPT_CHECKPOINTS} are needed")


def _check_remote(run_dir: str) -> Finding:
    scheme = run_dir.partition("://")[0]
    if scheme != "gs":
        return problem("run directory", f"found {scheme}://, allowed: a local directory or gs://")
    errors: list[BaseException] = []

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
    if errors and isinstance(errors[0], UserError):
        return problem("run directory", str(errors[0]))
    if errors:
        kind, first = type(errors[0]).__name__, first_line(errors[0])
        return problem("run directory", f"cannot write to {run_dir}: {kind}: {first}")
    return ok("run directory", f"{run_dir} can be written")


def _write_and_delete(folder: epath.Path) -> None:
    name = f".bert_jax_doctor_{os.getpid()}_{uuid.uuid4().hex}"
    file = folder / name
    try:
        file.write_bytes(b"bert_jax")
        if file.read_bytes() != b"bert_jax":
            raise OSError(f"{file} reads otherwise than it was written")
    finally:
        file.unlink(missing_ok=True)
