"""What `submit` would do, in full, without doing any of it: no credentials, no network."""

import hashlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from bert_jax.launch.host_paths import Upload
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Launcher

UNCHECKED: Final = (
    "credentials, permissions and that the APIs are enabled",
    "that the accelerator is offered in the zone, and the quota for it",
    "that the bucket exists, can be written and lies in the zone's region",
    "that dataset and tokenizer are there and match their hashes",
    "whether there is capacity now",
)
"""What only the cloud knows."""


def dry_run(
    job: Job,
    launcher: Launcher,
    *,
    config: str,
    software: Mapping[str, bytes],
    uploads: Sequence[Upload] = (),
) -> str:
    """Returns everything that would be written and asked for, as text.

    Args:
        job: to submit.
        launcher: of its machines.
        config: that hosts get, as YAML.
        software: that they install, by file name; the startup script is in it.
        uploads: of files that they read.

    Raises:
        UserError: the launcher cannot make such machines.
    """
    written = [*_software(job, software), *_uploads(uploads)]
    lines = _lines(job, launcher, config, software["startup.sh"].decode())
    parts = [*_beginning(job, written), *lines, *_title("Not checked")]
    parts += [f"- {line}" for line in UNCHECKED]
    return "\n".join(parts).rstrip() + "\n"


def money(placement: JobPlacement) -> str:
    """Returns hours and dollars of a run at one place: ``31.5 h, $19.20 an hour, $605``."""
    hours, rate = placement.estimated_hours, placement.dollars_per_hour
    parts = [f"about {hours:.1f} h" if hours is not None else "hours not planned"]
    parts += [f"${rate:,.2f} an hour" if rate is not None else "no price in the list"]
    if hours is not None and rate is not None:
        parts += [f"about ${hours * rate:,.0f}"]
    return ", ".join(parts)


def _beginning(job: Job, written: Sequence[str]) -> Iterator[str]:
    files = JobFiles(job.directory)
    yield f"Dry run of job {job.name}: nothing is made, nothing is asked for."
    yield from _title("Files that would be written")
    yield from (str(files.config), str(files.job), *written)


def _software(job: Job, software: Mapping[str, bytes]) -> Iterator[str]:
    for name, raw in sorted(software.items()):
        digest = hashlib.sha256(raw).hexdigest()[:16]
        path = JobFiles(job.directory).software / name
        yield f"{path}  {len(raw):,} bytes, SHA-256 {digest}…"


def _uploads(uploads: Sequence[Upload]) -> Iterator[str]:
    for each in uploads:
        for name, path in each.files.items():
            yield f"{each.target}/{name}  {path.stat().st_size:,} bytes, from {path}"


def _lines(job: Job, launcher: Launcher, config: str, script: str) -> Iterator[str]:
    for number, placement in enumerate(job.placements, start=1):
        which = "First" if number == 1 else "If that has no quota or capacity"
        yield from _title(f"{which}: {placement.place}")
        yield money(placement)
        for request in launcher.render(Attempt(job, number, placement)):
            yield f"\n{request.what}:\n"
            yield textwrap.indent(request.body.rstrip(), "    ")
            if request.command:
                yield "\nThe same as a command:\n"
                yield textwrap.indent(request.command, "    ")
    yield from _title("config.yaml, which hosts get")
    yield textwrap.indent(config.rstrip(), "    ")
    yield from _title("startup.sh, which hosts run")
    yield textwrap.indent(script.rstrip(), "    ")
    yield from _title("Limits")
    yield from _limits(job)


def _limits(job: Job) -> Iterator[str]:
    limits = job.submit.limits
    yield f"machines are asked for anew at most {limits.retries} times"
    yield f"given up after {limits.hours:g} h" if limits.hours else "no limit on hours"
    yield f"given up at ${limits.cost:,.2f}" if limits.cost else "no limit on dollars"


def _title(text: str) -> Iterator[str]:
    yield f"\n{text}"
    yield "=" * len(text)
