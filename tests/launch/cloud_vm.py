"""Simulates a Cloud TPU VM for its startup script: a metadata server, and recorded commands."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from tests.launch.jobs import STARTUP, TIMEOUT, http_server

TOKEN = "ya29.secret-token"

# Replaces the agent; prints its environment variables.
_AGENT = """
import os
names = ("BERT_JAX_JOB", "BERT_JAX_ATTEMPT", "BERT_JAX_WORKER", "BERT_JAX_HOME")
print(*(os.environ[name] for name in names), sep="|")
"""

# Records a command's arguments, then runs the command.
_NOTE = """#!/bin/sh
printf '%s\\n' "$0 $*" >>"$NOTES"
exec {command} "$@"
"""

# Replaces `systemd-run`: records its arguments, then runs the unit's command.
_SYSTEMD_RUN = """#!/bin/bash
printf '%s\\n' "$0 $*" >>"$NOTES"
while [[ $1 == --* ]]; do
  [[ $1 == --setenv=* ]] && export "${1#--setenv=}"
  shift
done
exec "$@"
"""


def _wheel(name: str, version: str, files: dict[str, str]) -> bytes:
    """Returns a wheel without dependencies."""
    content, records = io.BytesIO(), []
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            records.append(f"{path},sha256={digest.decode()},{len(text)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*records, f"{info}/RECORD,,"]))
    return content.getvalue()


def stage_software(job: epath.Path) -> None:
    """Writes software as `bert_jax.launch.bundle` does: empty lock, fake agent, recorded uv."""
    agent = {"bert_jax/__init__.py": "", "bert_jax/launch/__init__.py": ""}
    agent |= {"bert_jax/launch/host.py": _AGENT}
    uv = _NOTE.format(command=Path(sys.executable).with_name("uv"))
    software = {
        "bert_jax-0.2.0-py3-none-any.whl": _wheel("bert_jax", "0.2.0", agent),
        "uv-1.0-py3-none-any.whl": _wheel("uv", "1.0", {"uv-1.0.data/scripts/uv": uv}),
        "requirements.txt": b"",
        "python-version": f"{sys.version_info[0]}.{sys.version_info[1]}\n".encode(),
        "startup.sh": STARTUP.read_bytes(),
    }
    sums = "".join(f"{hashlib.sha256(raw).hexdigest()}  {name}\n" for name, raw in software.items())
    (job / "software").mkdir(parents=True, exist_ok=True)
    for name, raw in (software | {"SHA256SUMS": sums.encode()}).items():
        (job / "software" / name).write_bytes(raw)


@contextlib.contextmanager
def metadata_server(attributes: dict[str, str]) -> Iterator[str]:
    """Serves the metadata of an instance; yields the server's host and port."""
    token = f'{{"access_token":"{TOKEN}","expires_in":3599,"token_type":"Bearer"}}'
    found = {f"attributes/{name}": value for name, value in attributes.items()}
    found["service-accounts/default/token"] = token

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/computeMetadata/v1/instance/")
            known = self.headers.get("Metadata-Flavor") == "Google" and name in found
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(found[name].encode() if known else b"")

    with http_server(Handler) as port:
        yield f"127.0.0.1:{port}"


class Vm:
    """A machine of one attempt; it can boot several times."""

    def __init__(self, directory: Path) -> None:
        self.home, self._bin = directory / "home", directory / "bin"
        self._notes = directory / "notes"
        self._bin.mkdir(parents=True)
        self._command("curl", _NOTE.format(command="/usr/bin/curl"))
        self._command("systemd-run", _SYSTEMD_RUN)
        self._command("systemctl", "#!/bin/sh\nexit 3\n")
        self._command("mount", _NOTE.format(command="true"))
        self._command("mountpoint", "#!/bin/sh\nexit 1\n")
        self.disk = directory / "dev" / "disk" / "by-id" / "google-persistent-disk-1"
        self.huge_pages = directory / "sys" / "kernel" / "mm" / "transparent_hugepage" / "enabled"

    def boot(
        self, attributes: dict[str, str], storage: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the startup script with the environment of a Cloud TPU VM, and `variables`."""
        with metadata_server(attributes) as address:
            given = {
                # Put the tests' Python first, because a pyenv shim may fail here.
                "PATH": f"{self._bin}:{sys.base_prefix}/bin:{os.environ['PATH']}",
                "HOME": str(self.home),
                "BERT_JAX_HOME": str(self.home),
                "BERT_JAX_ROOT": str(self._bin.parent),
                "GCE_METADATA_HOST": address,
                "NOTES": str(self._notes),
                "BERT_JAX_PAUSE_SECONDS": "0",
                "UV_OFFLINE": "1",
                "UV_PYTHON_DOWNLOADS": "never",
            }
            if storage:
                given["STORAGE_EMULATOR_HOST"] = storage
            return subprocess.run(
                ["bash", str(STARTUP)],
                env=given | variables,
                cwd=self._bin,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )

    @property
    def notes(self) -> str:
        return self._notes.read_text() if self._notes.exists() else ""

    def _command(self, name: str, text: str) -> None:
        path = self._bin / name
        path.write_text(text)
        path.chmod(0o755)
