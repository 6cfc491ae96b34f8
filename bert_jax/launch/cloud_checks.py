"""What Google Cloud is asked before anything is made: access, accelerators offered, quota."""

import contextlib
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import RunStopped, UserError, did_you_mean, first_line
from bert_jax.launch.google_calls import GoogleCalls, exceptions
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.pace import NOT_INSTALLED, Pace
from bert_jax.launch.preflight import PreflightFinding
from bert_jax.launch.queued_resource import parent

try:
    from google.cloud import cloudquotas_v1, tpu_v2
    from google.cloud.cloudquotas_v1.services.cloud_quotas.transports import (
        CloudQuotasGrpcTransport,
    )
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
except ImportError as error:
    raise UserError(NOT_INSTALLED) from error

_QUOTAS: Final = "https://console.cloud.google.com/iam-admin/quotas"


def check_accelerators(job: Job, *, pace: Pace | None = None) -> Iterator[PreflightFinding]:
    """Yields whether each zone offers what a placement wants.

    The first request tells whether there are credentials, the API is enabled and the user may use
    it. Raises UserError if one of these is not so.
    """
    project = job.submit.project or ""
    calls = GoogleCalls(project, "tpu", pace or Pace())
    client = calls.client(tpu_v2.TpuClient, TpuGrpcTransport)
    offered: dict[str, list[str]] = {}
    for placement in job.placements:
        zone, topology = placement.zone, placement.topology
        if zone is None or topology is None:
            continue
        if zone not in offered:
            offered[zone] = _types(calls, client, project, zone)
        kind = topology.accelerator_type
        if kind in offered[zone]:
            yield PreflightFinding("fine", f"{kind} is offered in {zone}", placement)
            continue
        known = ", ".join(topology.accelerator.zones)
        there = ", ".join(offered[zone]) or "no TPU"
        near = did_you_mean(zone, topology.accelerator.zones)
        yield PreflightFinding(
            "wrong",
            f'submit.zone: found "{zone}", which offers {there} and no {kind}; '
            f"{topology.accelerator.name} is in {known}{near}",
            placement,
        )


def check_quotas(job: Job, *, pace: Pace | None = None) -> Iterator[PreflightFinding]:
    """Yields whether the project's limits allow each placement; what is in use is not in them."""
    project = job.submit.project or ""
    calls = GoogleCalls(project, "cloudquotas", pace or Pace())
    spot = job.submit.provisioning == "spot"
    for placement in job.placements:
        topology, zone = placement.topology, placement.zone
        if topology is None or zone is None or job.submit.provisioning == "reservation":
            continue
        quota = topology.accelerator.quota(topology.chips)
        if quota is None:
            kind = topology.accelerator_type
            line = f"quota of {kind}: Google publishes no name for it; look yourself: {_QUOTAS}"
            yield PreflightFinding("unknown", f"{line}?project={project}", placement)
            continue
        needed = topology.chips * placement.slices * quota.per_chip
        name = quota.spot if spot else quota.on_demand
        try:
            limit = _limit(calls, project, name, zone)
        except (UserError, RunStopped) as error:
            yield PreflightFinding("unknown", f"quota {name}: {first_line(error)}", placement)
            continue
        yield _compare(name, placement, limit=limit, needed=needed)


def _compare(
    name: str, placement: JobPlacement, *, limit: int | None, needed: int
) -> PreflightFinding:
    zone = placement.zone
    if limit is None:
        return PreflightFinding("unknown", f"quota {name}: no figure for {zone}", placement)
    if 0 <= limit < needed:
        return PreflightFinding(
            "wrong",
            f"quota {name} in {zone}: found {limit}, needed {needed}; ask for more: {_QUOTAS}",
            placement,
        )
    return PreflightFinding("fine", f"quota {name} in {zone}: {limit}, needed {needed}", placement)


def _types(calls: GoogleCalls, client: tpu_v2.TpuClient, project: str, zone: str) -> list[str]:
    request = tpu_v2.ListAcceleratorTypesRequest(parent=parent(project, zone), page_size=1000)
    expected = (exceptions.NotFound,)
    what = f"TPUs of {zone}"
    pages = calls.pages(client.list_accelerator_types, request, what=what, expected=expected)
    found: list[str] = []
    with contextlib.suppress(exceptions.NotFound):  # no such zone, or none with TPUs
        for page in pages:
            found += [kind.type_ for kind in page.accelerator_types]
    return found


def _limit(calls: GoogleCalls, project: str, quota: str, zone: str) -> int | None:
    """Returns how much of a quota a zone has; -1: any number."""
    client = calls.client(cloudquotas_v1.CloudQuotasClient, CloudQuotasGrpcTransport)
    name = f"projects/{project}/locations/global/services/tpu.googleapis.com/quotaInfos/{quota}"
    request = cloudquotas_v1.GetQuotaInfoRequest(name=name)
    info = calls.send(client.get_quota_info, request, what=f"quota {quota}")
    default = None
    for entry in info.dimensions_infos:
        if entry.dimensions.get("zone") == zone:
            return entry.details.value  # one without details is nought
        if not entry.dimensions and zone in entry.applicable_locations:
            default = entry.details.value
    return default
