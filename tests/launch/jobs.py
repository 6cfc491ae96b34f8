"""Writes jobs as `submit` does, and starts their hosts as local processes."""

import contextlib
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from bert_jax.config import dump_config, parse_config
from bert_jax.launch.job import HostStatus, Job, JobFiles, JobPlacement
from bert_jax.launch.retry_policy import AttemptRecord, SupervisorState
from bert_jax.launch.section import LauncherName, SubmitSection
from bert_jax.version import __version__
from tests.project import ROOT, environment

STARTUP = ROOT / "tpu_setup" / "startup.sh"

# Seconds, enough for a busy machine.
TIMEOUT = 300.0


def write_job(
    bucket: epath.PathLike,
    config: Mapping[str, Any],
    *,
    name: str = "tiny",
    hosts: int = 1,
    version: str = __version__,
    placement: JobPlacement | None = None,
    launcher: LauncherName = "queued-resources",
) -> JobFiles:
    """Writes a job of `on: local` with its first attempt, without the wheel."""
    settings = SubmitSection(
        name=name, on=("local",), hosts=hosts, bucket=str(bucket), launcher=launcher
    )
    run_dir = config["run_dir"]
    placement = placement or JobPlacement(on="local")
    job = Job(
        name=name,
        run_dir=run_dir,
        submit=settings,
        placements=(placement,),
        version=version,
        submitted=time.time(),
    )
    files = JobFiles(job.directory)
    begun = AttemptRecord(number=1, placement=0, intended=job.submitted)
    files.host(1, 0).parent.mkdir(parents=True, exist_ok=True)
    for path, content in (
        (files.job, job.model_dump_json()),
        (files.config, dump_config(parse_config(dict(config), source="test"))),
        (files.supervisor, SupervisorState(attempts=(begun,)).model_dump_json()),
    ):
        path.write_text(content)
    return files


@contextlib.contextmanager
def http_server(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """Serves `handler` on loopback, without logging; yields the port."""
    handler.log_message = lambda *args: None  # type: ignore[method-assign]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class HostProcess:
    """The process of a host: the startup script, which turns into the agent by `exec`."""

    def __init__(self, process: subprocess.Popen[str], files: JobFiles, worker: int) -> None:
        self.process, self._files, self._worker = process, files, worker

    @property
    def status(self) -> HostStatus | None:
        path = self._files.host(1, self._worker)
        return HostStatus.model_validate_json(path.read_text()) if path.exists() else None

    def until(self, condition: Callable[[HostStatus], object]) -> HostStatus:
        end = time.monotonic() + TIMEOUT
        while (status := self.status) is None or not condition(status):
            assert time.monotonic() < end, (status, self.log)
            assert self.process.poll() is None or status == self.status, (status, self.log)
            time.sleep(0.05)
        return status

    def wait(self) -> int:
        return self.process.wait(TIMEOUT)

    @property
    def log(self) -> str:
        path = self._files.log(1, self._worker)
        return path.read_text() if path.exists() else ""


@contextlib.contextmanager
def host(
    files: JobFiles, *, worker: int = 0, cwd: str | None = None, **variables: str
) -> Iterator[HostProcess]:
    """Starts a host with this Python; leaving the context ends it.

    Args:
        files: files of its job.
        worker: index of the host.
        cwd: its working directory.
        variables: additional environment variables.
    """
    settings = {
        "BERT_JAX_JOB": str(files.directory),
        "BERT_JAX_ATTEMPT": "1",
        "BERT_JAX_WORKER": str(worker),
        "BERT_JAX_PYTHON": sys.executable,
        "BERT_JAX_BEAT_SECONDS": "0.1",
        "BERT_JAX_PAUSE_SECONDS": "0.1",
    }
    process = subprocess.Popen(
        ["bash", str(STARTUP)],
        env=environment() | settings | variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield HostProcess(process, files, worker)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
