"""Metrics for Weights & Biases and MLflow, checked with fakes of the libraries.

The libraries and their dependencies take hundreds of megabytes. The fakes have only the methods
that we call, with the real signatures.
"""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import RunWriter, read_metrics
from bert_jax.train.trackers import IDS, require_trackers
from tests.project import refuses


class WandbRun:
    """Fakes the methods of `wandb.Run` that we call."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.logged: list[dict[str, Any]] = []
        self.metrics: list[tuple[str, dict[str, Any]]] = []
        self.finished = False

    def define_metric(self, name: str, **options: Any) -> None:
        self.metrics.append((name, options))

    def log(self, data: dict[str, Any]) -> None:
        assert not self.finished
        self.logged.append(data)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[WandbRun]:
    runs: list[WandbRun] = []

    def init(*, project: str, name: str, id: str, resume: str, config: dict[str, Any]) -> WandbRun:
        runs.append(WandbRun({"project": project, "name": name, "id": id, "config": config}))
        assert resume == "allow"
        return runs[-1]

    module = types.ModuleType("wandb")
    module.__dict__["init"] = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


class Client:
    """Fakes the methods of `mlflow.MlflowClient` that we call."""

    runs: dict[str, list[Any]]
    dicts: list[tuple[str, dict[str, Any], str]]
    terminated: list[str]

    def get_experiment_by_name(self, name: str) -> None:
        del name

    def create_experiment(self, name: str) -> str:
        assert name == "bert_jax"
        return "7"

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        assert (experiment_id, run_name) == ("7", "run")
        self.runs["abc"] = []
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

    def log_dict(self, run_id: str, dictionary: dict[str, Any], artifact_file: str) -> None:
        self.dicts.append((run_id, dictionary, artifact_file))

    def log_batch(self, run_id: str, *, metrics: list[Any]) -> None:
        self.runs[run_id] += [(metric[0], metric[1], metric[3]) for metric in metrics]

    def set_terminated(self, run_id: str, status: str) -> None:
        assert status == "FINISHED"
        self.terminated.append(run_id)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    Client.runs, Client.dicts, Client.terminated = {}, [], []
    module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
    module.__dict__["MlflowClient"] = Client
    entities.__dict__["Metric"] = lambda key, value, timestamp, step: (key, value, timestamp, step)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return Client


def test_both_get_metrics_under_the_same_ids_after_resuming(
    wandb: list[WandbRun], mlflow: type[Client], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 3\n")
    for first, step in ((0, 10), (10, 20)):
        writer = RunWriter(run, resume_step=first, trackers=("wandb", "mlflow"))
        writer.write("train", step, {"loss": 2.5})
        writer.write("validation", step, {"loss": 2.0})
        writer.close()
    assert [line["step"] for line in read_metrics(run, kind="train")] == [10, 20]
    one, other = wandb
    assert one.options == other.options
    assert one.options["config"] == {"seed": 3}
    assert one.options["name"] == "run"
    assert one.logged == [{"train/loss": 2.5, "step": 10}, {"validation/loss": 2.0, "step": 10}]
    assert ("*", {"step_metric": "step"}) in one.metrics
    assert other.finished
    assert list(mlflow.runs) == ["abc"]
    assert mlflow.runs["abc"][0] == ("train/loss", 2.5, 10)
    assert mlflow.runs["abc"][3] == ("validation/loss", 2.0, 20)
    assert mlflow.dicts[0] == ("abc", {"seed": 3}, "config.yaml")
    assert mlflow.terminated == ["abc", "abc"]
    assert json.loads((run / IDS).read_text()) == {"wandb": one.options["id"], "mlflow": "abc"}


def test_a_failing_tracker_does_not_stop_the_run(
    wandb: list[WandbRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    writer = RunWriter(tmp_path, resume_step=0, trackers=("wandb",), say=said.append)

    def fail(*args: Any) -> None:
        raise ConnectionError("no route to host\nat all")

    monkeypatch.setattr(wandb[0], "log", fail)
    for step in (1, 2):
        writer.write("train", step, {"loss": 1.0})
    writer.rewind(1)
    writer.write("train", 2, {"loss": 3.0})
    writer.close()
    (line,) = said
    assert line.startswith("wandb: ConnectionError: no route to host; ")
    assert [line["loss"] for line in read_metrics(tmp_path, kind="train")] == [1.0, 3.0]


def test_a_missing_tracker_package_is_named_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refuses("tracker.not_installed", place="train.trackers: wandb", name="wandb"):
        require_trackers(("wandb",), key="train.trackers")
