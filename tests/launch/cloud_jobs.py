"""Jobs for cloud launchers, and a clock that advances only by sleeping."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.request_retries import RequestLimits
from bert_jax.launch.section import SubmitSection
from tests.launch.tpu_service import PROJECT


class Clock:
    """A clock that advances during sleeps, and runs callbacks at their times."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []
        self.due: list[tuple[float, Callable[[], object]]] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        assert len(self.slept) < 2500, "it never ends"
        for entry in [entry for entry in self.due if entry[0] <= self.now]:
            self.due.remove(entry)
            entry[1]()

    def after(self, seconds: float, happens: Callable[[], object]) -> None:
        self.due.append((self.now + seconds, happens))

    @property
    def pace(self) -> RequestLimits:
        """The pace of requests, with the longest possible pauses."""
        return RequestLimits(sleep=self.sleep, clock=self, now=self, draw=lambda: 1.0)


def make_attempt(
    bucket: str,
    *,
    on: str = "v5e:4x4",
    slices: int = 1,
    zone: str | None = "us-west4-a",
    name: str = "base",
    number: int = 1,
    **submit: Any,
) -> Attempt:
    """Returns an attempt of a job without files."""
    placement = JobPlacement(on=on, slices=slices, zone=zone)
    settings = {"bucket": bucket, "project": PROJECT, "on": on, **submit}
    job = Job(
        name=name,
        run_dir=f"{bucket}/runs/{name}",
        submit=SubmitSection.model_validate(settings),
        placements=(placement,),
        version="0",
        submitted=0.0,
    )
    return Attempt(job, number, placement)


def stage(attempt: Attempt, script: str = "#!/bin/sh\n") -> Attempt:
    """Writes the startup script, the only file of a job that launchers read."""
    files = JobFiles(attempt.job.directory)
    Path(files.software).mkdir(parents=True, exist_ok=True)
    files.startup.write_text(script)
    return attempt
