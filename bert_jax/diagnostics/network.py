"""Checks that the hosts of a run can reach each other."""

import os
import socket
from collections.abc import Iterator
from typing import Final

from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.files.read import is_whole
from bert_jax.parallel.section import CLOUD_TPU_PORT, LAST_PORT, DistributedSection

_CONNECT_SECONDS: Final = 3.0


def expected_hosts(section: DistributedSection) -> tuple[int, str]:
    """Returns the expected number of processes, and the setting or variable that defines it.

    ``TPU_WORKER_HOSTNAMES=a,b MEGASCALE_NUM_SLICES=2 -> (4, "TPU_WORKER_HOSTNAMES times …")``

    Cloud TPU and GKE set these variables. JAX's own cluster detection reads them too.
    """
    if section.process_count is not None:
        return section.process_count, "mesh.distributed.process_count"
    listed = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    # Without a TPU, libtpu sets this variable to a warning, which contains spaces.
    hosts = 0 if " " in listed.strip() else sum(map(bool, listed.split(",")))
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "1")
    if not hosts:
        return 1, "default"
    if not is_whole(slices) or int(slices) < 2:
        return hosts, "TPU_WORKER_HOSTNAMES"
    return hosts * int(slices), "TPU_WORKER_HOSTNAMES times MEGASCALE_NUM_SLICES"


def check_hosts(expected: tuple[int, str], *, seen: int, enabled: bool) -> Finding:
    """Compares the result of `expected_hosts` with the processes that JAX sees."""
    processes, source = expected
    text = f"{processes} expected ({source}), {seen} seen"
    if seen == processes:
        return ok("hosts", text)
    if not enabled:
        return problem("hosts", f"{text}. Set mesh.distributed.enabled=true.")
    return problem("hosts", f"{text}. Run the same command with the same settings on every host.")


def check_coordinator(section: DistributedSection) -> Iterator[Finding]:
    """Checks the port on which process 0 waits for the others. Call it before processes join.

    On process 0, the port must be free. On the other hosts, it must answer.
    """
    if not section.enabled:
        yield ok("coordinator", f"one process, port {section.port} is not used")
        return
    host, port = section.coordinator_address, section.port
    before, colon, after = (host or "").rpartition(":")
    if colon and is_whole(after) and int(after) <= LAST_PORT:
        host, port = before, int(after)
    if section.process_index in (None, 0):
        yield _check_free(port)
    elif host is not None:
        yield _check_answers(host, port)
    accelerator = os.environ.get("TPU_ACCELERATOR_TYPE", "")
    if accelerator.startswith("v6e") and port != CLOUD_TPU_PORT:
        yield warn(
            "coordinator",
            f"the default firewall of {accelerator} closes port {port} and opens {CLOUD_TPU_PORT} "
            f"(jax#35905). Set mesh.distributed.coordinator_port={CLOUD_TPU_PORT}.",
        )


def _check_free(port: int) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # Like the coordinator, ignore connections of a former run in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError as error:
            return problem(
                "coordinator",
                f"port {port} cannot be used here ({error.strerror}). Is another run still active? "
                "Set mesh.distributed.coordinator_port to a free port, the same on every host.",
            )
    return ok("coordinator", f"port {port} is free here")


def _check_answers(host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return warn(
            "coordinator",
            f"{host}:{port} does not answer ({error.strerror or error}). Is process 0 running "
            "there, and does the firewall allow the port?",
        )
    return ok("coordinator", f"{host}:{port} answers")
