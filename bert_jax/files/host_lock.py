"""The lock files of host software, which are part of the package.

`make constraints` writes ``constraints/host-tpu-py312.txt`` and ``host-gpu-py312.txt``: the Python
version in the name, one line per package, and hashes for `uv pip install --require-hashes`.
"""

import functools
import re
from pathlib import Path
from typing import Final, Literal, NamedTuple

Lock = Literal["tpu", "gpu"]

_FOLDER: Final = Path(__file__).parent.parent / "constraints"
_NAME: Final = re.compile(r"host-\w+-py(\d)(\d+)\.txt")
_PIN: Final = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


class HostLock(NamedTuple):
    """Packages of all hosts with one kind of accelerator, independent of the submitter."""

    python: str  # version of Python: ``3.12``
    text: str  # content of the lock file
    versions: dict[str, str]  # version by package


@functools.cache
def host_lock(accelerator: Lock = "tpu") -> HostLock:
    """Returns the lock of an accelerator: ``host_lock("tpu").versions["jax"] -> "0.12.0.1"``."""
    (path,) = _FOLDER.glob(f"host-{accelerator}-py*.txt")
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    text = path.read_text(encoding="utf-8")
    return HostLock(f"{match[1]}.{match[2]}", text, dict(_PIN.findall(text)))


def uv_requirement() -> str:
    """Returns the requirement of the installer that hosts use, with its hashes."""
    return (_FOLDER / "host-uv.txt").read_text(encoding="utf-8")
