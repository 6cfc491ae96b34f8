"""Whether the hosts of a run can find each other."""

import os
import socket
from collections.abc import Iterator
from typing import Final, NamedTuple

from bert_jax.diagnostics.findings import Finding, ok, problem, warn
from bert_jax.files.read import is_whole
from bert_jax.parallel.section import LAST_PORT, DistributedSection

# Cloud TPU's default firewall rule for v6e networks lets this port through and not JAX's own
# default since 0.8.1, 8482 (jax#35905).
V6E_PORT: Final = 8476

_CONNECT_SECONDS: Final = 3.0


class ExpectedHosts(NamedTuple):
    """How many processes a run is to have, and what says so."""

    processes: int
    source: str


def expected_hosts(section: DistributedSection) -> ExpectedHosts:
    """Returns how many processes are expected, from the configuration or the TPU's environment.

    ``TPU_WORKER_HOSTNAMES=a,b MEGASCALE_NUM_SLICES=2 -> ExpectedHosts(4, "TPU_WORKER_…")``, the
    variables that Cloud TPU and GKE set, as JAX's own cluster detection reads them.
    """
    if section.process_count is not None:
        return ExpectedHosts(section.process_count, "mesh.distributed.process_count")
    listed = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    # Where libtpu finds no TPU it puts a sentence of warning there.
    names = [] if " " in listed.strip() else [name for name in listed.split(",") if name]
    slices = os.environ.get("MEGASCALE_NUM_SLICES", "1")
    if not names:
        return ExpectedHosts(1, "nothing says otherwise")
    if not is_whole(slices) or int(slices) < 2:
        return ExpectedHosts(len(names), "TPU_WORKER_HOSTNAMES")
    return ExpectedHosts(
        len(names) * int(slices), "TPU_WORKER_HOSTNAMES times MEGASCALE_NUM_SLICES"
    )


def check_hosts(expected: ExpectedHosts, *, seen: int, enabled: bool) -> Finding:
    """Compares the processes that `expected_hosts` returned with those that JAX sees."""
    text = f"{expected.processes} expected ({expected.source}), {seen} seen"
    if seen == expected.processes:
        return ok("hosts", text)
    if not enabled:
        return problem("hosts", f"{text}; set mesh.distributed.enabled=true")
    return problem("hosts", f"{text}; run the same command on every host, with the same settings")


def check_coordinator(section: DistributedSection) -> Iterator[Finding]:
    """Looks at the port on which process 0 waits for the others. Call it before they join.

    Where this host is to coordinate, the port must be free; where another is, it must answer.
    """
    if not section.enabled:
        yield ok("coordinator", f"one process, port {section.coordinator_port} is not used")
        return
    host, port = _address(section)
    if section.process_index in (None, 0):
        yield _check_free(port)
    elif host is not None:
        yield _check_answers(host, port)
    accelerator = os.environ.get("TPU_ACCELERATOR_TYPE", "")
    if accelerator.startswith("v6e") and port != V6E_PORT:
        yield warn(
            "coordinator",
            f"port {port} is closed by the default firewall of {accelerator}, which opens "
            f"{V6E_PORT} (jax#35905); set mesh.distributed.coordinator_port={V6E_PORT}",
        )


def _address(section: DistributedSection) -> tuple[str | None, int]:
    address = section.coordinator_address
    if address is None:
        return None, section.coordinator_port
    host, colon, port = address.rpartition(":")
    if colon and is_whole(port) and int(port) <= LAST_PORT:
        return host, int(port)
    return address, section.coordinator_port


def _check_free(port: int) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As the coordinator itself does: a connection that a former run left in TIME_WAIT is no
        # hindrance.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError as error:
            return problem(
                "coordinator",
                f"port {port} cannot be used here ({error.strerror}); is another run still going? "
                "set mesh.distributed.coordinator_port to a free one, the same on every host",
            )
    return ok("coordinator", f"port {port} is free here")


def _check_answers(host: str, port: int) -> Finding:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        return warn(
            "coordinator",
            f"{host}:{port} does not answer ({error.strerror or error}); is process 0 running "
            "there, and does the firewall let the port through?",
        )
    return ok("coordinator", f"{host}:{port} answers")
