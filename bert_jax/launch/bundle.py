"""Writes the files that hosts need to the job's directory, before the request for machines."""

import base64
import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.host_lock import Lock, host_lock, uv_requirement
from bert_jax.launch.job import RUN_JOB, Job, JobFiles
from bert_jax.version import __version__

HASHES: Final = "SHA256SUMS"
"""Name of the file with SHA-256 hashes of the software, for `sha256sum --check`."""

_HOST_PLATFORM: Final = "manylinux2014_x86_64"  # tag of uv's wheel for hosts


def startup_script() -> str:
    """Returns the text of ``tpu_setup/startup.sh``, which is part of the package."""
    return (PACKAGE / "tpu_setup" / "startup.sh").read_text(encoding="utf-8")


def software(accelerator: Lock = "tpu") -> dict[str, bytes]:
    """Returns the files that hosts install: wheel, lock, Python version, startup script.

    Raises UserError if the package is not installed here.
    """
    lock = host_lock(accelerator)
    return {
        f"{_NAME}-{__version__}-py3-none-any.whl": build_wheel(),  # named as in PEP 427
        "requirements.txt": lock.text.encode(),
        "python-version": f"{lock.python}\n".encode(),
        "startup.sh": startup_script().encode(),
    }


def installer() -> dict[str, bytes]:
    """Downloads the wheel of uv for hosts, in the version and with a hash of the lock.

    A host needs only Python's standard library to unpack it. Raises UserError if pip cannot
    download the wheel.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax_uv_") as directory:
        requirement = Path(directory, "uv.txt")
        requirement.write_text(uv_requirement(), encoding="utf-8")
        pip = [sys.executable, "-m", "pip"]
        if importlib.util.find_spec("pip") is None and (uv := shutil.which("uv")) is not None:
            pip = [uv, "tool", "run", "pip"]  # an environment that uv made has no pip
        done = subprocess.run(
            [
                *(*pip, "download", "--quiet", "--no-deps"),
                *("--require-hashes", "--only-binary", ":all:", "--platform", _HOST_PLATFORM),
                *("--requirement", requirement, "--dest", directory),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(Path(directory).glob("uv-*.whl"))
        if done.returncode or len(wheels) != 1:
            pin = next(line for line in uv_requirement().splitlines() if "==" in line).split()[0]
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            message = f"pip cannot download it ({reason}). Allow access to an index."
            raise UserError("install.uv", message, place=pin)
        return {wheels[0].name: wheels[0].read_bytes()}


def versions_line(accelerator: Lock) -> str:
    """Returns the versions that hosts install, and this machine's if they differ.

    ``Python 3.12, jax 0.12.0.1, libtpu 0.0.50.1; this machine has jax 0.10.2``
    """
    lock = host_lock(accelerator)
    shown = [f"{name} {lock.versions[name]}" for name in ("jax", "libtpu") if name in lock.versions]
    here = metadata.version("jax")
    differs = "" if here == lock.versions["jax"] else f"; this machine has jax {here}"
    return f"Python {lock.python}, {', '.join(shown)}{differs}"


def stage(job: Job, config: str) -> JobFiles:
    """Writes a job's files, ``job.json`` last, and then ``job.txt`` in the run directory.

    `config` is the resolved configuration as YAML. Raises UserError if a job of that name exists,
    the bucket cannot be written, or the installer cannot be downloaded. Raises RunStopped if the
    bucket does not answer.
    """
    files = JobFiles(job.directory)
    if files.job.exists():
        raise UserError(
            "job.exists", "This job exists. Choose another --name.", place=job.directory
        )
    installed = job.submit.installed
    staged = software(installed or "tpu") | ({} if installed is None else installer())
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
    # A checkout may have an egg-info folder, which Python finds before the installed package.
    metadata_text = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    if not metadata_text or "\nRequires-Dist: " not in metadata_text:
        remedy = "found no requirements. Remove it, and run pip install . in the checkout."
        place = str(getattr(installed, "_path", "bert-jax"))
        raise UserError("install.metadata", remedy, place=place)
    files[f"{info}/METADATA"] = metadata_text.encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
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


def _distribution() -> metadata.Distribution:
    try:
        installed = metadata.distribution("bert-jax")
    except metadata.PackageNotFoundError:
        missing = (
            "not installed, so its requirements are unknown. Run pip install . in its checkout."
        )
        raise UserError("install.requirements", missing, place="bert-jax") from None
    if installed.version != __version__:
        both = f"{installed.version} is installed, {__version__} imported. Run pip install -e ."
        raise UserError("install.two_versions", both, place="bert-jax")
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
