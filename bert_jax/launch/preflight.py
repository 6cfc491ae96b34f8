"""What is looked at before anything is made, so that nothing is paid for in vain."""

import contextlib
import dataclasses
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from etils import epath

from bert_jax.data.dataset.cache import check_files
from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.data.google_bert.reader import is_google_bert
from bert_jax.errors import RunStopped, UserError
from bert_jax.files.cloud_object import CloudObject
from bert_jax.files.remote import is_remote
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.parallel.layout import check_batch, check_slices, mesh_shape
from bert_jax.parallel.probe import missing_platform
from bert_jax.parallel.section import MeshSection
from bert_jax.text import load_tokenizer

_GONE: Final = ": not there; allowed: what is in the bucket"
_INSTEAD: Final = {
    "finetune.init_from": ", or a model on a hub: hf://owner/name",
    "finetune.task": ", or on this machine, from where it is uploaded",
}

FindingVerdict = Literal["fine", "warning", "wrong", "unknown"]


@dataclasses.dataclass(frozen=True)
class PreflightFinding:
    """The result of one check."""

    # `wrong` keeps a placement, or the job, from being started; `unknown`: it could not be checked
    verdict: FindingVerdict
    line: str  # what was found
    placement: JobPlacement | None = None  # whose it is; None for the whole job's


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a run reads and how it is cut, from its configuration."""

    tokenizer: str | None  # its directory; None: the run brings its own
    datasets: Mapping[str, str]  # directories or TFRecords by the key that names them
    # Rows of the global batches by key, each with its accumulation
    batch_sizes: Mapping[str, tuple[int, int]]
    mesh: MeshSection  # how it is laid out, and on what
    # Files and directories that must be there, by key
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def _looking(key: str, findings: list[PreflightFinding]) -> Iterator[None]:
    """Adds a finding where the look at something fails."""
    try:
        yield
    except UserError as error:
        findings.append(PreflightFinding("wrong", f"{key}: {error}"))
    except RunStopped as error:
        findings.append(PreflightFinding("unknown", f"{key}: {error}"))


def check_inputs(inputs: Inputs) -> list[PreflightFinding]:
    """Returns whether tokenizer and datasets are there, whole, and of each other.

    Sizes are compared here, every byte's SHA-256 on the hosts when they have copied it.
    """
    wanted, found = None, []
    if inputs.tokenizer is not None:
        with _looking("tokenizer", found):
            wanted = load_tokenizer(inputs.tokenizer).hash
            line = f"tokenizer {inputs.tokenizer} ({wanted[:12]})"
            found.append(PreflightFinding("fine", line))
    for key, path in inputs.datasets.items():
        with _looking(key, found):
            found.append(_dataset(key, path, wanted))
    for key, path in inputs.others.items():
        with _looking(key, found):
            found.append(_there(key, path))
    return found


def check_layout(job: Job, inputs: Inputs) -> Iterator[PreflightFinding]:
    """Yields what of a configuration does not go with the number of hosts and devices.

    By the rules that the hosts have; `bert-jax plan` says more: whether the steps compile, and fit.
    How many devices a host of ``local`` has is known of simulated ones alone.
    """
    for placement in job.placements:
        hosts, topology = job.hosts(placement), placement.topology
        mesh = inputs.mesh.model_copy(update={"slices": placement.slices})
        devices = (mesh.simulated_devices or 0) * hosts
        if topology is not None:
            devices = topology.devices * placement.slices
        parts = 1
        if devices:
            try:
                data, fsdp, _ = mesh_shape(mesh, devices)
                check_slices(mesh, data)
                parts = data * fsdp
            except UserError as error:
                yield PreflightFinding("wrong", str(error), placement)
                continue
        for key, (rows, accumulation) in inputs.batch_sizes.items():
            try:
                check_batch(key, rows, parts=parts, accumulation=accumulation)
            except UserError as error:
                yield PreflightFinding("wrong", str(error), placement)
                continue
            # Hosts share rows where the tensor axis spans them.
            if not devices and mesh.tensor == 1 and rows % hosts:
                line = f"{key}: found {rows}, allowed: a multiple of {hosts} hosts"
                yield PreflightFinding("wrong", line, placement)


def check_platform(job: Job, mesh: MeshSection) -> Iterator[PreflightFinding]:
    """Yields where the devices that a configuration names are not those of the hosts.

    Of ``local`` a platform that is named is opened, in a process of its own.
    """
    for placement in job.placements:
        if placement.topology is None:
            if (line := missing_platform(mesh.platform)) is not None:
                yield PreflightFinding("wrong", line, placement)
            continue
        idle = f"its hosts would train on their CPUs, and {placement.on} would bill for nothing"
        if mesh.platform not in ("auto", "tpu"):
            line = f'mesh.platform: found "{mesh.platform}", allowed on {placement.on}: auto, tpu'
            yield PreflightFinding("wrong", f"{line}; {idle}", placement)
        elif mesh.simulated_devices is not None:
            line = f"mesh.simulated_devices: found {mesh.simulated_devices}, allowed on "
            yield PreflightFinding("wrong", f"{line}{placement.on}: null; {idle}", placement)


def check_bucket(job: Job) -> list[PreflightFinding]:
    """Returns whether the bucket can be written, and lies where the machines are."""
    bucket, found = job.submit.bucket or "", []
    if is_remote(bucket):
        with _looking("submit.bucket", found):
            probe = CloudObject(f"{bucket}/jobs/.preflight-{uuid.uuid4().hex}")
            generation = probe.write(b"", replaces=0)
            if generation is not None:
                probe.delete(generation=generation)
            found += _of_location(bucket, probe.location(), job.placements)
    return found


def _of_location(
    bucket: str, where: str | None, placements: Sequence[JobPlacement]
) -> Iterator[PreflightFinding]:
    if where is None:
        yield PreflightFinding("unknown", f"where {bucket} lies: no permission storage.buckets.get")
        return
    yield PreflightFinding("fine", f"{bucket} can be written; it lies in {where}")
    for placement in placements:
        if placement.zone is not None and not _near(where, placement.zone):
            line = f"{bucket} lies in {where}: reading it from {placement.zone} is slow and costs"
            yield PreflightFinding("warning", line, placement)


def refuse(
    findings: Sequence[PreflightFinding], placements: Sequence[JobPlacement]
) -> tuple[JobPlacement, ...]:
    """Returns the placements that nothing speaks against.

    Raises UserError if something is wrong with the job, or with every place; the first is in the
    line.
    """
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    for finding in wrong:
        if finding.placement is None:
            raise UserError(finding.line)
    without = [finding.placement for finding in wrong]
    left = tuple(placement for placement in placements if placement not in without)
    if not left:
        raise UserError(wrong[0].line)
    return left


def _there(key: str, path: str) -> PreflightFinding:
    if epath.Path(path).exists():
        return PreflightFinding("fine", f"{key}: {path}")
    instead = next((text for name, text in _INSTEAD.items() if key.startswith(name)), "")
    return PreflightFinding("wrong", f"{key}: {path}{_GONE}{instead}")


def _dataset(key: str, path: str, tokenizer: str | None) -> PreflightFinding:
    if is_google_bert(path):
        line = f"{key}: {path}: TFRecords; which tokenizer made them is unknown"
        return PreflightFinding("fine", line)
    found = read_provenance(path)
    check_files(path)
    if tokenizer is not None:
        found.require_tokenizer(tokenizer, place=path)
    return PreflightFinding("fine", f"{key}: {path}")


def _near(location: str, zone: str) -> bool:
    """Whether a bucket's location holds a zone: its region, or a multi-region around it."""
    where, region = location.lower(), zone.rpartition("-")[0]
    around = {"us": "us-", "eu": "europe-", "asia": "asia-"}
    return where == region or (where in around and zone.startswith(around[where]))
