"""Zones and buckets: which names are possible, and which zones offer which generation of TPU.

The generations of each zone are in `bert_jax.parallel.accelerators`; the regions are here. Both are
as Google's pages had them on `READ`. A zone of a newer region is possible, so it is a warning.
"""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError, did_you_mean
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.preflight import PreflightFinding

READ: Final = "2026-11-23"
SOURCES: Final = (
    "https://docs.cloud.google.com/compute/docs/regions-zones",
    "https://docs.cloud.google.com/tpu/docs/regions-zones",
    "https://cloud.google.com/storage/docs/buckets#naming",
)
REGIONS: Final = frozenset(
    f"{area}{number}"
    for area, numbers in {
        "africa-south": (1,),
        "asia-east": (1, 2),
        "asia-northeast": (1, 2, 3),
        "asia-south": (1, 2),
        "asia-southeast": (1, 2),
        "australia-southeast": (1, 2),
        "europe-central": (2,),
        "europe-north": (1, 2),
        "europe-southwest": (1,),
        "europe-west": (1, 2, 3, 4, 6, 8, 9, 10, 12),
        "me-central": (1, 2),
        "me-west": (1,),
        "northamerica-northeast": (1, 2),
        "northamerica-south": (1,),
        "southamerica-east": (1,),
        "southamerica-west": (1,),
        "us-central": (1, 2),
        "us-east": (1, 4, 5),
        "us-south": (1,),
        "us-west": (1, 2, 3, 4),
    }.items()
    for number in numbers
)
# A region of a later table: a continent and a direction that exist, and a number below 20.
_REGION: Final = (
    r"(africa|asia|australia|europe|me|northamerica|southamerica|us)-"
    r"(central|(north|south)?(east|west)|north|south)1?[0-9]"
)
# AI zones too: us-south1-ai1b
_ZONE: Final = re.compile(rf"(?P<region>{_REGION})-([a-z]|ai[1-9][a-z])")

_PART: Final = r"[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?"
_BUCKET: Final = re.compile(rf"{_PART}(\.{_PART})*")


def check_zones(job: Job) -> Iterator[PreflightFinding]:
    """Yields what speaks against a zone: its form, or that it does not offer the accelerator.

    Needs no network. With `submit.unlisted_zones` a zone that the tables lack is a warning.
    """
    for placement in job.placements:
        if placement.zone is not None and placement.topology is not None:
            yield from _check_zone(placement, placement.zone, unlisted=job.submit.unlisted_zones)


def _check_zone(
    placement: JobPlacement, zone: str, *, unlisted: bool
) -> Iterator[PreflightFinding]:
    assert placement.topology is not None
    accelerator = placement.topology.accelerator
    known, found = accelerator.zones, f'submit.zone: found "{zone}"'
    if zone in known:
        return
    near = did_you_mean(zone, known)
    match = _ZONE.fullmatch(zone)
    if match is None:
        there = [each for each in known if each.startswith(f"{zone}-")]
        region = ", a region" if re.fullmatch(_REGION, zone) else ""
        offered = f"a zone that offers {accelerator.name}: {', '.join(there or known)}"
        yield PreflightFinding("wrong", f"{found}{region}, allowed: {offered}{near}")
    elif match["region"] not in REGIONS:
        line = f"{found}, a region that Google's list of {READ} does not have{near}"
        yield PreflightFinding("warning", line, placement)
    elif unlisted:
        line = f"{found}, where {accelerator.name} is not in Google's table of {READ}"
        yield PreflightFinding("warning", line, placement)
    else:
        line = (
            f"{found}, where Google's table of {READ} has no {accelerator.name}; allowed: "
            f"{', '.join(known)}, or submit.unlisted_zones=true to ask for it all the same{near}"
        )
        yield PreflightFinding("wrong", line, placement)


def check_bucket_name(bucket: str) -> None:
    """Raises UserError if Cloud Storage cannot have a bucket of the name in ``gs://bucket/…``."""
    name = bucket.removeprefix("gs://").partition("/")[0]
    if not _has_form(name):
        right = re.sub(r"[^-_.a-z0-9]", "-", name.lower()).strip("-_.")
        near = f'; did you mean "gs://{right}"?' if _has_form(right) else ""
        raise UserError(
            f'--bucket: found "{bucket}", allowed: gs:// and 3 to 63 lowercase letters, digits, '
            f'"-", "_" and ".", with a letter or digit at both ends{near}'
        )
    if name.startswith("goog") or "google" in name or _is_address(name):
        raise UserError(
            f'--bucket: found "{bucket}", allowed: a name that is no address, does not begin with '
            '"goog" and does not contain "google"'
        )


def _has_form(name: str) -> bool:
    longest = 222 if "." in name else 63
    return 3 <= len(name) <= longest and _BUCKET.fullmatch(name) is not None


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True
