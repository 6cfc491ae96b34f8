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

    Hosts get `config`, as YAML, install `software`, by file name with the startup script in it, and
    read the files of `uploads`. Raises UserError if the launcher cannot make such machines.
    """
    script = software["startup.sh"].decode()
    written = [*_written(job, software, uploads), *_lines(job, launcher, config, script)]
    lines = [*written, *_title("Not checked"), *(f"- {line}" for line in UNCHECKED)]
    return "\n".join(lines).rstrip() + "\n"


def money(placement: JobPlacement) -> str:
    """Returns hours and dollars of a run at one place: ``31.5 h, $19.20 an hour, $605``."""
    hours, rate = placement.estimated_hours, placement.dollars_per_hour
    parts = [f"about {hours:.1f} h" if hours is not None else "hours not planned"]
    parts += [f"${rate:,.2f} an hour" if rate is not None else "no price in the list"]
    if hours is not None and rate is not None:
        parts += [f"about ${hours * rate:,.0f}"]
    return ", ".join(parts)


def _written(job: Job, software: Mapping[str, bytes], uploads: Sequence[Upload]) -> Iterator[str]:
    files = JobFiles(job.directory)
    yield f"Dry run of job {job.name}: nothing is made, nothing is asked for."
    yield from _title("Files that would be written")
    yield from (str(files.config), str(files.job))
    for name, raw in sorted(software.items()):
        digest = hashlib.sha256(raw).hexdigest()[:16]
        yield f"{files.software / name}  {len(raw):,} bytes, SHA-256 {digest}…"
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
    limits = job.submit.limits
    yield f"machines are asked for anew at most {limits.retries} times"
    yield f"given up after {limits.hours:g} h" if limits.hours else "no limit on hours"
    yield f"given up at ${limits.cost:,.2f}" if limits.cost else "no limit on dollars"


def _title(text: str) -> Iterator[str]:
    yield f"\n{text}"
    yield "=" * len(text)
