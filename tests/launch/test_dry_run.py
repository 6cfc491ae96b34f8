"""A dry run shows everything that would be done, and does nothing."""

from pathlib import Path

import pytest

from bert_jax.launch.dry_run import dry_run
from bert_jax.launch.gke import GkeJobSets
from bert_jax.launch.job import JobPlacement
from bert_jax.launch.launcher import Launcher
from bert_jax.launch.queued_resources import QueuedResources
from tests.launch.cloud_jobs import make_attempt
from tests.launch.tpu_service import PROJECT

SOFTWARE = {"startup.sh": b"#!/bin/sh\necho hello\n", "bert_jax-1-py3-none-any.whl": b"PK"}


@pytest.mark.parametrize(
    ("launcher", "request_is", "command"),
    [
        (QueuedResources(PROJECT), '"acceleratorType": "v5litepod-16"', "gcloud compute tpus"),
        (GkeJobSets(), "kind: JobSet", "kubectl apply -f base-1.yaml"),
    ],
)
def test_a_dry_run_shows_requests_script_money_and_what_it_cannot_know(
    launcher: Launcher, request_is: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **values: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    job = make_attempt("gs://bucket", image="image:1", limits={"cost": 500}).job
    places = (
        JobPlacement(on="v5e:4x4", zone="us-west4-a", dollars_per_hour=19.2, estimated_hours=31.46),
        JobPlacement(on="v5e:4x4", slices=2, zone="us-south1-a"),
    )
    job = job.model_copy(update={"placements": places})
    text = dry_run(job, launcher, config="seed: 1\n", software=SOFTWARE, full=True)
    for part in (
        request_is,
        command,
        "gs://bucket/jobs/base/software/bert_jax-1-py3-none-any.whl  2 bytes",
        "First: v5e:4x4 in us-west4-a",
        "about 31.5 h, $19.20 an hour, about $604",
        "If that has no quota or capacity: 2 × v5e:4x4 in us-south1-a",
        "hours not planned, no price in the list",
        "    seed: 1",
        "    echo hello",
        "limits    stops at $500.00, enough for 26.0 h of the first machines",
        "Not checked",
        "- credentials, permissions and that the APIs are enabled",
    ):
        assert part in text, part


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    job = make_attempt(str(tmp_path)).job
    dry_run(job, QueuedResources(PROJECT), config="", software=SOFTWARE)
    assert list(tmp_path.iterdir()) == []
