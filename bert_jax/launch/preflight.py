"""Checks of a job before it costs money.

`bert_jax.parallel.accelerators` lists the zones of each generation, copied on `TABLE_DATE` from
https://docs.cloud.google.com/tpu/docs/regions-zones. The rules for bucket names:
https://cloud.google.com/storage/docs/buckets#naming.
"""

import contextlib
import dataclasses
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from etils import epath

from bert_jax.data.dataset.cache import check_files
from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.google_bert.reader import is_google_bert
from bert_jax.errors import RunStopped, UserError, commas, did_you_mean
from bert_jax.files.lock import CloudObject
from bert_jax.files.remote import is_remote
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.parallel.probe import missing_platform
from bert_jax.parallel.section import MeshSection, check_batch, check_slices, mesh_shape
from bert_jax.text import load_tokenizer

TABLE_DATE: Final = "2026-11-23"
_ZONE: Final = re.compile(r"[a-z]+-[a-z]+[0-9]+-([a-z]|ai[1-9][a-z])")  # AI zones: us-south1-ai1b

_PART: Final = r"[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?"
_BUCKET: Final = re.compile(rf"{_PART}(\.{_PART})*")

_ALTERNATIVES: Final = {
    "finetune.init_from": "a model on a hub: hf://owner/name",
    "finetune.distill_from": "a model on a hub: hf://owner/name",
    "objective.teacher": "a model on a hub: hf://owner/name",
    "finetune.task": "a file on this machine, which is then uploaded",
}


@dataclasses.dataclass(frozen=True)
class PreflightFinding:
    """The result of one check."""

    # `wrong`: the placement, or the whole job, cannot run. `unknown`: the check was impossible.
    verdict: Literal["fine", "warning", "wrong", "unknown"]
    line: str  # message for the user
    placement: JobPlacement | None = None  # unset if the finding concerns the whole job
    error: UserError | None = None  # error of a `wrong` finding


def wrong(error: UserError, placement: JobPlacement | None = None) -> PreflightFinding:
    """Returns a `wrong` finding. Without a placement, it concerns the whole job."""
    return PreflightFinding("wrong", str(error), placement, error)


def refuse(
    findings: Sequence[PreflightFinding], placements: Sequence[JobPlacement]
) -> tuple[JobPlacement, ...]:
    """Returns the placements without a `wrong` finding.

    Raises UserError if a `wrong` finding concerns the whole job, or if no placement is left.
    """
    errors = [(each.placement, each.error) for each in findings if each.error is not None]
    excluded = [placement for placement, _ in errors]
    left = tuple(placement for placement in placements if placement not in excluded)
    if None in excluded or not left:
        raise errors[excluded.index(None) if None in excluded else 0][1]
    return left


def check_zones(job: Job) -> Iterator[PreflightFinding]:
    """Yields a finding for each misspelt zone, and each zone without the accelerator.

    With `submit.unlisted_zones`, yields only a warning for a zone that the table lacks.
    """
    for placement in job.placements:
        if (zone := placement.zone) is None or placement.topology is None:
            continue
        accelerator = placement.topology.accelerator
        known = accelerator.zones
        if zone in known:
            continue
        if _ZONE.fullmatch(zone) is None:
            near = [name for name in known if name.startswith(f"{zone}-")]
            error = UserError(
                "submit.zone_unknown",
                f'found "{zone}", allowed: {commas(near or known)}{did_you_mean(zone, known)}',
                place="submit.zone",
            )
            yield wrong(error)
            continue
        error = UserError(
            "submit.zone_unlisted",
            f'found "{zone}", where Google\'s table of {TABLE_DATE} has no {accelerator.name}; '
            f"allowed: {commas(known)}, or any zone with "
            f"submit.unlisted_zones=true{did_you_mean(zone, known)}",
            place="submit.zone",
        )
        if job.submit.unlisted_zones:
            yield PreflightFinding("warning", str(error), placement)
        else:
            yield wrong(error, placement)


def check_layout(
    job: Job, mesh: MeshSection, batch_sizes: Mapping[str, tuple[int, int]]
) -> Iterator[PreflightFinding]:
    """Yields a finding if mesh or batch do not fit a placement's hosts and devices.

    `batch_sizes`: rows and accumulation steps of each global batch, by key. For ``local`` without
    simulated devices, the number of devices is unknown: only rows per host are checked.
    """
    for placement in job.placements:
        hosts, topology = job.hosts(placement), placement.topology
        mesh = mesh.model_copy(update={"slices": placement.slices})
        devices = (mesh.simulated_devices or 0) * hosts
        if topology is not None:
            devices = topology.devices * placement.slices
        parts = 1
        try:
            if devices:
                data, fsdp, _ = mesh_shape(mesh, devices)
                check_slices(mesh, data)
                parts = data * fsdp
            for key, (rows, accumulation) in batch_sizes.items():
                check_batch(key, rows, parts=parts, accumulation=accumulation)
                # With a tensor axis, hosts may load the same rows: any number of rows is allowed.
                if not devices and mesh.tensor == 1 and rows % hosts:
                    allowed = f"a multiple of {hosts}, the number of hosts"
                    raise UserError.wrong("submit.batch_of_hosts", rows, allowed, place=key)
        except UserError as error:
            yield wrong(error, placement)


def check_platform(job: Job, mesh: MeshSection) -> Iterator[PreflightFinding]:
    """Yields a finding if a placement's hosts lack the platform of the configuration.

    For ``local``, a subprocess tries to open the platform.
    """
    for placement in job.placements:
        if placement.topology is None:
            if (error := missing_platform(mesh.platform)) is not None:
                yield wrong(error, placement)
            continue
        # On another platform, hosts would train on CPUs while their TPUs cost money.
        if mesh.platform not in ("auto", "tpu"):
            error = UserError(
                "submit.platform",
                f'found "{mesh.platform}", allowed on {placement.on}: {commas(["auto", "tpu"])}',
                place="mesh.platform",
            )
            yield wrong(error, placement)
        elif mesh.simulated_devices is not None:
            error = UserError(
                "submit.simulated_devices",
                f"found {mesh.simulated_devices}, allowed on {placement.on}: null",
                place="mesh.simulated_devices",
            )
            yield wrong(error, placement)


def check_bucket_name(bucket: str) -> None:
    """Raises UserError if the name in ``gs://bucket/…`` is not a valid bucket name."""
    name = bucket.removeprefix("gs://").partition("/")[0]
    longest = 222 if "." in name else 63
    if not 3 <= len(name) <= longest or _BUCKET.fullmatch(name) is None:
        allowed = 'gs:// and 3 to 63 of a-z, 0-9, "-", "_" and "."'
        raise UserError.wrong("bucket.name", f'"{bucket}"', allowed, place="--bucket")
    is_address = re.fullmatch(r"[0-9]+(\.[0-9]+){3}", name) is not None
    if name.startswith("goog") or "google" in name or is_address:
        allowed = "no IP address, no goog at the start, and no google"
        raise UserError.wrong("bucket.name_reserved", f'"{bucket}"', allowed, place="--bucket")


@contextlib.contextmanager
def _errors_as_findings(key: str, findings: list[PreflightFinding]) -> Iterator[None]:
    """Appends an error of the block to `findings`."""
    try:
        yield
    except UserError as error:
        findings.append(wrong(error.located(key)))
    except RunStopped as error:
        findings.append(PreflightFinding("unknown", f"{key}: {error}"))


def check_bucket(job: Job) -> list[PreflightFinding]:
    """Checks whether the bucket can be written, and whether it is near the machines."""
    bucket = job.submit.bucket or ""
    found: list[PreflightFinding] = []
    if not is_remote(bucket):
        return found
    with _errors_as_findings("submit.bucket", found):
        probe = CloudObject(f"{bucket}/jobs/.preflight-{uuid.uuid4().hex}")
        generation = probe.write(b"", replaces=0)
        if generation is not None:
            probe.delete(generation=generation)
        where = probe.location()
        if where is None:
            line = f"region of {bucket}: no permission storage.buckets.get"
            return [PreflightFinding("unknown", line)]
        found.append(PreflightFinding("fine", f"{bucket} in {where} is writable"))
        for placement in job.placements:
            if placement.zone is not None and not _near(where, placement.zone):
                line = f"{bucket} is in {where}. Reading it from {placement.zone} is slow and costs"
                found.append(PreflightFinding("warning", f"{line} extra.", placement))
    return found


def _near(location: str, zone: str) -> bool:
    """Returns whether a zone is in a bucket's region or multi-region."""
    where, region = location.lower(), zone.rpartition("-")[0]
    around = {"us": "us-", "eu": "europe-", "asia": "asia-"}
    return where == region or (where in around and zone.startswith(around[where]))


def check_inputs(
    *,
    tokenizer: str | None,
    datasets: Mapping[str, str],
    others: Mapping[str, str],
    sizes: dict[str, int],
) -> list[PreflightFinding]:
    """Checks that the inputs exist and are complete, and that datasets match the tokenizer.

    `datasets` and `others` map keys to paths. Compares file sizes; hosts compare SHA-256 later.
    Adds the bytes of each dataset that hosts copy to `sizes`, by path.
    """
    wanted: str | None = None
    found: list[PreflightFinding] = []
    if tokenizer is not None:
        with _errors_as_findings("tokenizer", found):
            wanted = load_tokenizer(tokenizer).hash
            found.append(PreflightFinding("fine", f"tokenizer {tokenizer} ({wanted[:12]})"))
    for key, path in datasets.items():
        with _errors_as_findings(key, found):
            found.append(_dataset(key, path, wanted, sizes))
    for key, path in others.items():
        with _errors_as_findings(key, found):
            if not epath.Path(path).exists():
                instead = [text for name, text in _ALTERNATIVES.items() if key.startswith(name)]
                remedy = f"missing. Use a path in the bucket, or {instead[0]}."
                raise UserError("submit.input_missing", remedy, place=path)
            found.append(PreflightFinding("fine", f"{key}: {path}"))
    return found


def _dataset(key: str, path: str, tokenizer: str | None, sizes: dict[str, int]) -> PreflightFinding:
    if is_google_bert(path):
        line = f"{key}: {path}: TFRecords of an unknown tokenizer"
        return PreflightFinding("fine", line)
    found = read_provenance(path)
    sizes[path] = check_files(path)
    if tokenizer is not None:
        found.require_tokenizer(tokenizer, place=path)
    return PreflightFinding("fine", f"{key}: {path}")
