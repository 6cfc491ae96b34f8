"""Zones and buckets: which names are possible, and which zones offer which generation of TPU.

The zones of each generation are in `bert_jax.parallel.accelerators`, as Google's page had them on
`READ`: https://docs.cloud.google.com/tpu/docs/regions-zones. Bucket names follow
https://cloud.google.com/storage/docs/buckets#naming.
"""

import re
from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError, did_you_mean
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.preflight import PreflightFinding

READ: Final = "2026-11-23"
_ZONE: Final = re.compile(r"[a-z]+-[a-z]+[0-9]+-([a-z]|ai[1-9][a-z])")  # AI zones: us-south1-ai1b

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
    if _ZONE.fullmatch(zone) is None:
        there = [each for each in known if each.startswith(f"{zone}-")]
        offered = f"a zone that offers {accelerator.name}: {', '.join(there or known)}"
        yield PreflightFinding("wrong", f"{found}, allowed: {offered}{near}")
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
    longest = 222 if "." in name else 63
    if not 3 <= len(name) <= longest or _BUCKET.fullmatch(name) is None:
        raise UserError(
            f'--bucket: found "{bucket}", allowed: gs:// and 3 to 63 lowercase letters, digits, '
            '"-", "_" and ".", with a letter or digit at both ends'
        )
    is_address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name) is not None
    if name.startswith("goog") or "google" in name or is_address:
        raise UserError(
            f'--bucket: found "{bucket}", allowed: a name that is no address, does not begin with '
            '"goog" and does not contain "google"'
        )
