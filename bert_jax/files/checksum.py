"""Checksums of files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from etils import epath


def sha256_of(path: epath.PathLike) -> str:
    """Returns the SHA-256 of a file in hexadecimal, without loading it whole."""
    with epath.Path(path).open("rb") as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def sha256_of_files(files: Mapping[str, Path]) -> str:
    """Returns the SHA-256 of what `sha256sum` prints of files, by name: of one, or several."""
    sums = hashlib.sha256()
    for name, path in sorted(files.items()):
        sums.update(f"{sha256_of(path)}  {name}\n".encode())
    return sums.hexdigest()
