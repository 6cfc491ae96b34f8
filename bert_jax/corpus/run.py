"""Runs a job: this host's parts, then the manifest."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.corpus.engines import LocalWorkers, run_parts
from bert_jax.corpus.job import Job, ScoredModel
from bert_jax.corpus.parts import InputPart
from bert_jax.corpus.program import IdleClock
from bert_jax.corpus.score_part import PartRecord, Progress
from bert_jax.data.host_share import HostShare
from bert_jax.errors import counted
from bert_jax.files.atomic import remove_unfinished, write_whole
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing
from bert_jax.train.metrics_writer import GOODPUT, Writer
from bert_jax.train.progress_display import warn_aloud

MANIFEST: Final = "_manifest.json"
_TOTALS: Final = ("read", "written", "dropped", "skipped", "cut", "tokens")


class ScoreResult(NamedTuple):
    """The work of a command, and the state of the whole job."""

    records: Sequence[PartRecord]  # all finished parts of the job
    computed: int  # parts that this command finished
    missing: int  # parts of the job without results
    rows: int  # rows that this command read
    tokens: int
    positions: int  # tokens and padding
    seconds: float
    waited: float  # share of the time in which the devices waited


class Meter:
    """Counts the work of a job, for the progress line."""

    def __init__(self, parts: int, *, computing: int, dollars_per_hour: float | None) -> None:
        """`computing` is the number of processes that run the model."""
        self.done, self._parts, self._price = 0, parts, dollars_per_hour
        self.rows = self.tokens = self.positions = 0
        self.clock = IdleClock()  # of the devices of this process
        self._computing, self._waited = max(computing, 1), 0.0
        self._began = time.monotonic()

    def add(self, progress: Progress) -> None:
        """Adds a report of a worker."""
        self.rows += progress.rows
        self.tokens += progress.tokens
        self.positions += progress.positions
        self._waited += progress.waited

    @property
    def waited(self) -> float:
        """Share of the time in which the devices waited."""
        found = (self._waited + self.clock.waited) / (self._computing * max(self.seconds, 1e-9))
        return min(found, 1.0)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def line(self) -> str:
        """Returns the progress line."""
        seconds = max(self.seconds, 1e-9)
        found = [f"{self.done:,} of {counted(self._parts, 'part')}", *self.rates(seconds)]
        return f"scoring: {', '.join(found)}"

    def rates(self, seconds: float) -> list[str]:
        """Returns rows, rates, the share of time in which the devices waited, and the price."""
        found = [
            counted(self.rows, "document"),
            f"{self.rows / seconds:,.0f} documents/s",
            f"{self.tokens / seconds:,.0f} tokens/s",
            f"devices waited {self.waited:.0%}",
        ]
        if self._price is not None:
            found.append(f"${self._price * seconds / 3600:,.2f}")
        return found


def run_job(
    job: Job, model: ScoredModel, *, host: HostShare, dollars_per_hour: float | None = None
) -> ScoreResult:
    """Scores this host's missing parts. Writes the manifest if no part of the job is missing.

    Needs no other host. Raises the errors of `score_part`; finished parts stay.
    """
    finished = job.finished()
    mine = [part for part in job.parts[host.index :: host.count] if part.stem not in finished]
    if job.settings.section.engine == "local":
        _remove_unfinished(job, mine)
    workers = LocalWorkers.of(job, model)
    meter = Meter(
        len(mine),
        computing=min(workers.processes, len(mine)) if workers.own_model else 1,
        dollars_per_hour=dollars_per_hour,
    )
    heartbeat, computed = Writer(say=warn_aloud), list[PartRecord]()
    with doing(meter.line):
        for record in run_parts(job, mine, model, workers, clock=meter.clock, report=meter.add):
            computed.append(record)
            meter.done += 1
            waited = meter.waited * meter.seconds
            shares = {"compute": meter.seconds - waited, "wait": waited}
            heartbeat.write(GOODPUT, meter.done, shares)
    finished |= {record.output.rpartition(".")[0]: record for record in computed}
    finished = job.finished(known=finished)  # other hosts may have finished more
    records = [finished[part.stem] for part in job.parts if part.stem in finished]
    missing = len(job.parts) - len(records)
    if not missing:
        write_whole(job.output / MANIFEST, json.dumps(manifest(job, records), indent=1) + "\n")
    return ScoreResult(
        records=records,
        computed=len(mine),
        missing=missing,
        rows=meter.rows,
        tokens=meter.tokens,
        positions=meter.positions,
        seconds=meter.seconds,
        waited=meter.waited,
    )


def manifest(job: Job, records: Sequence[PartRecord]) -> dict[str, Any]:
    """Returns the settings, the files with their hashes and counts, and the sums of all counts."""
    parts = [
        {
            name: value
            for name, value in record._asdict().items()
            if name not in ("seconds", "summary")
        }
        for record in records
    ]
    for part in parts:  # copies of a corpus have the same manifest
        part["input"] = {k: value for k, value in part["input"].items() if k != "modified"}
    total = {name: sum(getattr(record, name) for record in records) for name in _TOTALS}
    return {"settings": job.fingerprint, "total": total, "parts": parts}


def _remove_unfinished(job: Job, parts: Sequence[InputPart]) -> None:
    """Removes the unfinished files of killed processes for parts of this host."""
    if is_remote(job.output):  # a bucket has none
        return
    paths = [Path(job.output, f"{part.stem}.{job.settings.section.format}") for part in parts]
    with_unfinished = {
        directory for directory in {path.parent for path in paths} if any(directory.glob("*.tmp"))
    }
    for path in paths:
        if path.parent in with_unfinished:
            remove_unfinished(path.parent, of=path.name)
