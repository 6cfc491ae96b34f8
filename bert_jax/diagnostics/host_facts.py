"""Facts about this machine for `bert-jax doctor --first-hour`: software, hardware and cloud."""

import glob
import http.client
import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import psutil

from bert_jax.data.worker_process import available_cores
from bert_jax.diagnostics.machine import installed
from bert_jax.files.host_lock import host_lock

Verdict = Literal["ok", "differs", "unknown"]

_PACKAGES: Final = ("jax", "jaxlib", "libtpu", "flax", "orbax-checkpoint")
_SERVER: Final = "metadata.google.internal"
_METADATA_SECONDS: Final = 3.0
# The report has the values of these attributes. Other attributes may have secrets: names only.
_TPU_ATTRIBUTES: Final = (
    "accelerator-type",
    "agent-worker-number",
    "worker-network-endpoints",
    "tpu-env",
)
_COMMAND_SECONDS: Final = 60.0


class Answer(NamedTuple):
    """One answer of the report."""

    topic: str
    verdict: Verdict
    text: str  # answer in one line
    facts: Mapping[str, Any] = {}  # details, as plain JSON


def system() -> Answer:
    """Returns the operating system, this Python, and the Python of the system."""
    try:
        release = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        release = platform.system()
    facts = {
        "os": release,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "system python": _output("python3", "-V"),
        "system pip": _output("python3", "-m", "pip", "-V"),
    }
    text = f"{release}, kernel {facts['kernel']}, Python {facts['python']}"
    return Answer("system", "ok", text, facts)


def packages() -> Answer:
    """Compares installed versions with the lock that TPU hosts install."""
    lock = host_lock("tpu")
    found = {name: installed(name) for name in ("bert-jax", *_PACKAGES)}
    wanted = {name: lock.versions.get(name) for name in _PACKAGES}
    facts = {"found": found, "lock": wanted, "python of the lock": lock.python}
    python = ".".join(platform.python_version_tuple()[:2])
    if python != lock.python:
        text = f"not compared: the lock is for Python {lock.python}, this is Python {python}"
        return Answer("packages", "unknown", text, facts)
    others = [
        f"{name} {found[name]}, lock {wanted[name]}"
        for name in _PACKAGES
        if found[name] != wanted[name]
    ]
    if others:
        return Answer("packages", "differs", "; ".join(others), facts)
    shown = ", ".join(f"{name} {found[name]}" for name in ("jax", "libtpu"))
    return Answer("packages", "ok", f"as in the lock: {shown}", facts)


def metadata() -> Answer:
    """Returns the names of all metadata attributes, and the values of the TPU's attributes.

    Without a metadata server, the verdict is `unknown`. GCE_METADATA_HOST names another server.
    """
    listed = _attribute("")
    if listed is None:
        return Answer("metadata", "unknown", "no metadata server of Google Cloud")
    names = sorted(listed.split())
    values = {name: _attribute(name) for name in _TPU_ATTRIBUTES if name in names}
    facts = {"names": names, "values": values}
    if "accelerator-type" not in values:
        return Answer("metadata", "unknown", "no attributes of a TPU", facts)
    missing = [name for name in _TPU_ATTRIBUTES if not values.get(name)]
    if missing:
        return Answer("metadata", "differs", f"missing: {', '.join(missing)}", facts)
    text = f"{values['accelerator-type']}, worker {values['agent-worker-number']}"
    return Answer("metadata", "ok", text, facts)


def machine(*, on_tpu: bool) -> Answer:
    """Returns cores, memory, disk, huge pages, locked memory and device files.

    `on_tpu`: whether this is a TPU VM, which needs huge pages and device files.
    """
    disk = shutil.disk_usage(tempfile.gettempdir())
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    devices = [path for name in ("vfio", "vfio/", "accel") for path in glob.glob(f"/dev/{name}*")]
    facts = {
        "cores": available_cores(),
        "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
        "disk GiB": {"free": disk.free >> 30, "total": disk.total >> 30},
        "huge pages": pages.read_text().strip() if pages.exists() else None,
        "locked memory": "unlimited" if locked == resource.RLIM_INFINITY else locked,
        "device files": sorted(devices),
    }
    text = f"{facts['cores']} cores, {facts['memory GiB']} GiB, {disk.free >> 30} GiB of disk free"
    if on_tpu and not devices:
        return Answer("machine", "differs", f"{text}; no /dev/vfio or /dev/accel", facts)
    if on_tpu and "[always]" not in (facts["huge pages"] or ""):
        return Answer("machine", "differs", f"{text}; huge pages {facts['huge pages']}", facts)
    return Answer("machine", "ok", text, facts)


def _attribute(name: str) -> str | None:
    """Returns an attribute of the instance, or a list of all names for "". None if missing."""
    server = os.environ.get("GCE_METADATA_HOST", _SERVER)
    connection = http.client.HTTPConnection(server, timeout=_METADATA_SECONDS)
    try:
        path = f"/computeMetadata/v1/instance/attributes/{name}"
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _output(*command: str) -> str:
    """Returns the last line that a program of the system prints, or why it did not run."""
    program = shutil.which(command[0], path=os.defpath)
    if program is None:
        return "not installed"
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]
