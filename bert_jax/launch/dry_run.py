"""The text of `submit --dry-run`. Uses no credentials or network, and creates no machines."""

import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bert_jax.errors import counted
from bert_jax.launch.bundle import versions_line
from bert_jax.launch.host_paths import Upload
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.preflight import TABLE_DATE

UNCHECKED: Final = (
    "credentials, permissions and enabled APIs",
    f"the zone's accelerators (the built-in table dates from {TABLE_DATE}) and their quota",
    "existence, permissions and region of the bucket",
    "existence and hashes of dataset and tokenizer",
    "capacity",
)
"""Conditions that a dry run cannot check."""


def dry_run(
    job: Job,
    launcher: Launcher,
    *,
    config: str,
    software: Mapping[str, bytes],
    uploads: Sequence[Upload] = (),
    warnings: Sequence[str] = (),
    full: bool = False,
) -> str:
    """Returns cost, limits and unchecked conditions; with `full`, also all files and requests.

    `config`: configuration for the hosts as YAML. `software`: files that hosts install, by name.
    `warnings`: warnings to print. Raises UserError if the launcher cannot create the machines.
    """
    requests = list(_requests(job, launcher))  # may raise, so call it without `full` too
    lines = [f"Dry run of job {job.name}: creates no files and requests no machines.", ""]
    lines += [f"{name:<10}{text}" for name, text in _summary(job, uploads, software)]
    lines += [*warnings, _title("Not checked"), *(f"- {line}" for line in UNCHECKED)]
    if full:
        lines += [*_written(job, software, uploads), *requests]
        lines += [_title("config.yaml for the hosts"), _indented(config)]
        script = software["startup.sh"].decode()
        lines += [_title("startup.sh for the hosts"), _indented(script)]
    else:
        lines += ["", "Use --full to show all files and requests."]
    return "\n".join(lines).rstrip() + "\n"


def money(placement: JobPlacement) -> str:
    """Returns hours and dollars of a run on one placement: ``about 31.5 h, $19.20 an hour, …``."""
    hours, rate = placement.estimated_hours, placement.dollars_per_hour
    parts = [f"about {hours:.1f} h" if hours is not None else "hours unknown"]
    parts += [f"${rate:,.2f} an hour" if rate is not None else "no price in the list"]
    if hours is not None and rate is not None:
        parts += [f"about ${hours * rate:,.0f}"]
    return ", ".join(parts)


def _summary(
    job: Job, uploads: Sequence[Upload], software: Mapping[str, bytes]
) -> Iterator[tuple[str, str]]:
    first, *others = job.placements
    hosts = counted(job.hosts(first), "host")
    yield "machines", f"{first.place}, {hosts}, {job.submit.provisioning}"
    for other in others:
        yield "", f"without quota or capacity: {other.place}, {money(other)}"
    plan = "" if first.on == "local" else f" (`bert-jax plan CONFIG --topology {first.on}`)"
    yield "cost", money(first) + (plan if first.estimated_hours is None else "")
    limits = job.submit.limits
    if limits.cost is not None:
        rate = first.dollars_per_hour
        duration = f", enough for {limits.cost / rate:,.1f} h on the first machines" if rate else ""
        yield "limits", f"stops at ${limits.cost:,.2f}{duration}"
    else:
        needed = "" if first.on == "local" else ": submit needs --max-cost DOLLARS or --no-limit"
        yield "limits", f"no cost limit{needed}"
    yield "", f"stops after {limits.hours:g} h" if limits.hours else "no time limit"
    yield "", f"replaces lost machines at most {limits.retries} times"
    yield "run", job.run_dir
    if (lock := job.submit.installed) is not None:
        yield "software", versions_line(lock)
    size = sum(len(raw) for raw in software.values())
    size += sum(path.stat().st_size for upload in uploads for path in upload.files.values())
    yield "files", f"{job.directory}, {size / 1e6:,.1f} MB"


def _written(job: Job, software: Mapping[str, bytes], uploads: Sequence[Upload]) -> Iterator[str]:
    files = JobFiles(job.directory)
    yield _title("Files that would be written")
    yield from (str(files.config), str(files.job))
    for name, raw in sorted(software.items()):
        digest = hashlib.sha256(raw).hexdigest()[:16]
        yield f"{files.software / name}  {len(raw):,} bytes, SHA-256 {digest}…"
    if job.submit.installed is not None:
        yield f"{files.software}/uv-….whl  downloaded from the package index, about 18 MB"
    for upload in uploads:
        for name, path in upload.files.items():
            yield f"{upload.target}/{name}  {path.stat().st_size:,} bytes, from {path}"


def _requests(job: Job, launcher: Launcher) -> Iterator[str]:
    for number, placement in enumerate(job.placements, start=1):
        which = "First" if number == 1 else "Without quota or capacity"
        yield _title(f"{which}: {placement.place}")
        yield money(placement)
        for request in launcher.render(Attempt(job, number, placement)):
            yield f"\n{request.what}:\n\n{_indented(request.body)}"
            if request.command:
                yield f"\nAs a command:\n\n{_indented(request.command)}"


def _title(text: str) -> str:
    return f"\n{text}\n{'=' * len(text)}"


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip(), "    ")
