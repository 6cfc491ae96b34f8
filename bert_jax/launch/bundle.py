"""Writes the files that hosts need to the job's directory, before the request for machines."""

import base64
import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.launch.job import RUN_JOB, Job, JobFiles
from bert_jax.version import __version__

HASHES: Final = "SHA256SUMS"
"""Name of the file with SHA-256 hashes of the software, for `sha256sum --check`."""


def startup_script() -> str:
    """Returns the text of ``tpu_setup/startup.sh``, which is part of the package."""
    return (PACKAGE / "tpu_setup" / "startup.sh").read_text(encoding="utf-8")


def software() -> dict[str, bytes]:
    """Returns the files that hosts install: wheel, constraints, Python version, startup script.

    Raises UserError if the package is not installed here.
    """
    return {
        f"{_NAME}-{__version__}-py3-none-any.whl": build_wheel(),  # named as in PEP 427
        "constraints.txt": constraints().encode(),
        "python-version": f"{sys.version_info[0]}.{sys.version_info[1]}\n".encode(),
        "startup.sh": startup_script().encode(),
    }


def stage(job: Job, config: str) -> JobFiles:
    """Writes a job's files, ``job.json`` last, and then ``job.txt`` in the run directory.

    `config` is the resolved configuration as YAML. Raises UserError if a job of that name exists or
    the bucket cannot be written. Raises RunStopped if the bucket does not answer.
    """
    files = JobFiles(job.directory)
    if files.job.exists():
        raise UserError(
            "job.exists", "This job exists. Choose another --name.", place=job.directory
        )
    staged = software()
    for name, raw in staged.items():
        write_whole(files.software / name, raw)
    digests = [f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in staged.items()]
    write_whole(files.software / HASHES, "".join(digests))
    write_whole(files.config, config)
    write_whole(files.job, job.model_dump_json(indent=1))
    write_whole(epath.Path(job.run_dir) / RUN_JOB, f"{files.directory}\n")
    return files


PACKAGE: Final = Path(__file__).parent.parent  # the package's directory

_NAME: Final = "bert_jax"
_ANY_TIME: Final = (1980, 1, 1, 0, 0, 0)  # a fixed date: equal files give equal wheels
_WHEEL: Final = (
    "Wheel-Version: 1.0\nGenerator: bert-jax\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)


def build_wheel() -> bytes:
    """Returns a wheel of the imported package, built without a build tool or network.

    Raises UserError if the package is not installed, because its requirements are then unknown.
    """
    installed, info = _distribution(), f"{_NAME}-{__version__}.dist-info"
    files = {f"{_NAME}/{name}": path.read_bytes() for name, path in _files()}
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    records = []
    for name, raw in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=")
        records.append(f"{name},sha256={digest.decode()},{len(raw)}\n")
    files[f"{info}/RECORD"] = "".join([*records, f"{info}/RECORD,,\n"]).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ANY_TIME), raw, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def constraints() -> str:
    """Returns the versions of all packages installed here as pip constraints.

    Skips packages that no index has: local builds (``torch 2.13+cpu``), packages installed from a
    directory or URL, and bert-jax. Packages that only hosts need (libtpu) stay unconstrained.
    """
    lines = set()
    for found in metadata.distributions():
        name, version = found.metadata["Name"], found.version
        ours = name in (None, "bert-jax") or "+" in version
        if not ours and found.read_text("direct_url.json") is None:
            lines.add(f"{name.lower().replace('_', '-')}=={version}\n")
    return "".join(sorted(lines))


def _distribution() -> metadata.Distribution:
    try:
        installed = metadata.distribution("bert-jax")
    except metadata.PackageNotFoundError:
        raise UserError(
            "install.requirements",
            "imported but not installed, so the requirements of the hosts are unknown. "
            "Run pip install . in the checkout of bert_jax.",
            place="bert-jax",
        ) from None
    if installed.version != __version__:
        raise UserError(
            "install.two_versions",
            "found version {found} installed and {imported} imported, allowed: one version. "
            "Run pip install -e . in the checkout of bert_jax.",
            place="bert-jax",
            found=installed.version,
            imported=__version__,
        )
    return installed


def _files() -> Iterator[tuple[str, Path]]:
    """Yields the relative name and the path of each file in the package, in a fixed order."""
    # Follow links: in a checkout, some folders of the package link to top-level folders.
    for directory, folders, names in os.walk(PACKAGE, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(directory, name)
            if path.suffix != ".pyc" and not name.startswith("."):
                yield path.relative_to(PACKAGE).as_posix(), path
