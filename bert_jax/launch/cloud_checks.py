"""Checks against Google Cloud before machines are requested: access, accelerators, quota."""

from collections.abc import Iterator
from typing import Final

from google.cloud import cloudquotas_v1, tpu_v2

from bert_jax.errors import RunStopped, UserError, commas, did_you_mean, first_line
from bert_jax.launch.google_service import GoogleService, exceptions
from bert_jax.launch.job import Job
from bert_jax.launch.preflight import PreflightFinding, wrong
from bert_jax.launch.request_retries import RequestLimits
from bert_jax.launch.tpu_launcher import parent

_QUOTAS: Final = "https://console.cloud.google.com/iam-admin/quotas"


def check_accelerators(
    job: Job, *, pace: RequestLimits | None = None
) -> Iterator[PreflightFinding]:
    """Checks whether each placement's zone offers its accelerator; yields findings.

    Raises UserError if credentials, permission or the API are missing.
    """
    project = job.submit.project or ""
    service = GoogleService(project, tpu_v2.TpuClient, pace=pace)
    offered: dict[str, list[str]] = {}
    for placement in job.placements:
        zone, topology = placement.zone, placement.topology
        if zone is None or topology is None:
            continue
        if zone not in offered:
            offered[zone] = _types(service, parent(project, zone), zone)
        kind = topology.accelerator_type
        if kind in offered[zone]:
            yield PreflightFinding("fine", f"{zone} offers {kind}", placement)
            continue
        known = topology.accelerator.zones
        error = UserError(
            "submit.zone_without",
            f'found "{zone}", which offers no {kind} (only: '
            f"{commas(offered[zone] or 'nothing')}). Allowed zones: "
            f"{commas(known)}{did_you_mean(zone, known)}",
            place="submit.zone",
        )
        yield wrong(error, placement)


def _types(service: GoogleService, location: str, zone: str) -> list[str]:
    request = tpu_v2.ListAcceleratorTypesRequest(parent=location, page_size=1000)
    what, expected = f"TPUs of {zone}", (exceptions.NotFound,)
    pages = service.pages("list_accelerator_types", request, what=what, expected=expected)
    try:
        return [kind.type_ for page in pages for kind in page.accelerator_types]
    except exceptions.NotFound:  # unknown zone, or a zone without TPUs
        return []


def check_quotas(job: Job, *, pace: RequestLimits | None = None) -> Iterator[PreflightFinding]:
    """Compares each placement with the project's quota; ignores the current use of the quota."""
    submit, project = job.submit, job.submit.project or ""
    service = GoogleService(project, cloudquotas_v1.CloudQuotasClient, pace=pace)
    for placement in job.placements:
        topology, zone = placement.topology, placement.zone
        if topology is None or zone is None or submit.provisioning == "reservation":
            continue
        quota = topology.accelerator.quota(topology.chips)
        if quota is None:
            kind = topology.accelerator_type
            line = f"quota of {kind}: Google publishes no name for it. See {_QUOTAS}"
            yield PreflightFinding("unknown", f"{line}?project={project}", placement)
            continue
        name = quota.spot if submit.provisioning == "spot" else quota.on_demand
        needed = topology.chips * placement.slices * quota.per_chip
        try:
            limit = _limit(service, project, name, zone)
        except (UserError, RunStopped) as error:
            line = f"quota {name}: {first_line(error)}"
            yield PreflightFinding("unknown", line, placement)
            continue
        if limit is None:
            yield PreflightFinding("unknown", f"quota {name}: no value for {zone}", placement)
        elif 0 <= limit < needed:
            error = UserError(
                "submit.quota",
                f"found {limit}, needed {needed}. Request more at {_QUOTAS}.",
                place=f"quota {name} in {zone}",
            )
            yield wrong(error, placement)
        else:
            line = f"quota {name} in {zone}: {limit}, needed {needed}"
            yield PreflightFinding("fine", line, placement)


def _limit(service: GoogleService, project: str, quota: str, zone: str) -> int | None:
    """Returns the limit of a quota in a zone: -1 if unlimited, None if unknown."""
    name = f"projects/{project}/locations/global/services/tpu.googleapis.com/quotaInfos/{quota}"
    request = cloudquotas_v1.GetQuotaInfoRequest(name=name)
    info = service.send("get_quota_info", request, what=f"quota {quota}")
    default = None
    for entry in info.dimensions_infos:
        if entry.dimensions.get("zone") == zone:
            return entry.details.value  # 0 if the service returns no details
        if not entry.dimensions and zone in entry.applicable_locations:
            default = entry.details.value
    return default
