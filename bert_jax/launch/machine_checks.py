"""Checks of the settings of a cloud job's machines: network, account, slices, queue, disks.

They need no network. The rules are from these pages, read 2026-11:

- Multislice: https://docs.cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice
- accounts of pods: https://docs.cloud.google.com/kubernetes-engine/docs/concepts/workload-identity
- disks: https://docs.cloud.google.com/tpu/docs/attach-durable-block-storage
"""

import math
import re
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError
from bert_jax.launch.job import Job
from bert_jax.launch.preflight import PreflightFinding, wrong
from bert_jax.parallel.accelerators import GIB

_ROLE: Final = "roles/storage.objectUser"
_BOOT_DISK: Final = 100 * GIB  # disk of a Cloud TPU VM; the API cannot change its size
_SYSTEM: Final = 10e9  # bytes of the system, our software and its caches
_FILE_SYSTEM: Final = 1.05  # size of a disk per byte of files
# Settings that each launcher ignores.
_IGNORED: Final = {
    "gke": ("network", "subnetwork", "external_address", "cloud_nat", "data_disk"),
    "queued-resources": ("cluster", "namespace", "image", "data_disk_gb"),
}
_KUBERNETES_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check_machines(job: Job) -> Iterator[PreflightFinding]:
    """Yields a finding for each setting that the job's launcher refuses or that may lack a role."""
    submit = job.submit
    if submit.queue is not None and submit.launcher != "gke":
        error = UserError(
            "submit.queue",
            f'found "{submit.queue}", allowed: only with submit.launcher: gke',
            place="submit.queue",
        )
        yield wrong(error)
    if submit.on == ("local",):
        return
    if submit.reservation is not None and submit.provisioning != "reservation":
        error = UserError(
            "submit.reservation_unused",
            f"{submit.provisioning} uses no reservation. Set submit.provisioning: reservation.",
            place="submit.reservation",
        )
        yield wrong(error)
    for name in _IGNORED[submit.launcher]:
        if getattr(submit, name) != type(submit).model_fields[name].default:
            line = f"submit.{name} has no effect with submit.launcher: {submit.launcher}"
            yield PreflightFinding("warning", line)
    yield from _check_gke(job) if submit.launcher == "gke" else _check_queued(job)


def _check_queued(job: Job) -> Iterator[PreflightFinding]:
    submit = job.submit
    if not submit.external_address and not submit.cloud_nat:
        error = UserError(
            "submit.cloud_nat",
            f"found {submit.cloud_nat}, but hosts without external address need it. Create it.",
            place="submit.cloud_nat",
        )
        yield wrong(error)
    if (account := submit.service_account) is None:
        yield _unset_account(job, "hosts use the project's default account")
    elif "@" not in account:
        yield _wrong_name("service_account", account, "an e-mail address")
    if submit.data_disk is None:
        return
    for placement in job.placements:
        if (topology := placement.topology) is not None:
            accelerator = topology.accelerator
            kind = "Hyperdisk ML" if accelerator.hyperdisk else "Balanced Persistent Disk"
            line = f"submit.data_disk: the type of {submit.data_disk} was not checked. Hosts of "
            line += f"{accelerator.name} take only {kind}."
            yield PreflightFinding("unknown", line, placement)


def _check_gke(job: Job) -> Iterator[PreflightFinding]:
    submit = job.submit
    if submit.service_account is None:
        yield _unset_account(job, "pods use the host network and the account of their node pool")
    for name, value in (
        ("service_account", submit.service_account),
        ("namespace", submit.namespace),
        ("reservation", submit.reservation),
    ):
        if value is not None and _KUBERNETES_NAME.fullmatch(value) is None:
            yield _wrong_name(name, value, "a name in Kubernetes: lowercase letters, digits, -")
    for placement in job.placements:
        topology, slices = placement.topology, placement.slices
        if topology is None or slices == 1 or topology.hosts(gke=True) > 1:
            continue
        error = UserError(
            "submit.slices_of_one_host",
            f"found {slices} slices of 1 host ({placement.on}). GKE needs 2 hosts each.",
            place="submit.slices",
        )
        yield wrong(error, placement)


def _wrong_name(name: str, found: str, allowed: str) -> PreflightFinding:
    error = UserError.wrong("submit.name_form", f'"{found}"', allowed, place=f"submit.{name}")
    return wrong(error)


def _unset_account(job: Job, instead: str) -> PreflightFinding:
    """Returns the warning that the hosts' account may lack access to the bucket."""
    line = f"submit.service_account is unset: {instead}, which needs {_ROLE} on {job.submit.bucket}"
    return PreflightFinding("warning", line)


def check_disk(job: Job, datasets: int) -> Iterator[PreflightFinding]:
    """Yields a finding if the hosts' disk is too small for the job's datasets.

    `datasets`: number of bytes of all datasets, which every host copies to its disk. Without
    `submit.data_disk_gb`, the size of a GKE node's disk is unknown.
    """
    submit = job.submit
    if submit.on == ("local",):
        return
    if submit.launcher == "queued-resources" and datasets + _SYSTEM > _BOOT_DISK:
        error = UserError(
            "submit.boot_disk",
            f"found {datasets / 1e9:.4g} GB of datasets, allowed: "
            f"{(_BOOT_DISK - _SYSTEM) / 1e9:.4g} GB, the free space of a host's boot disk. Use "
            "smaller datasets, another loader.cache.directory, or submit.launcher: gke with "
            "submit.data_disk_gb.",
            place="train",
        )
        yield wrong(error)
    size, needed = submit.data_disk_gb, math.ceil(datasets * _FILE_SYSTEM / GIB)
    if submit.launcher == "gke" and size is not None and size < needed:
        error = UserError(
            "submit.data_disk_gb",
            f"found {size}, but the datasets have {datasets / 1e9:.4g} GB. Use at least {needed}.",
            place="submit.data_disk_gb",
        )
        yield wrong(error)
