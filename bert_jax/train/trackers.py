"""Weights & Biases and MLflow, for who asks for them: ``train.trackers: [wandb, mlflow]``.

Neither is a dependency. Where they send to is for their own environment variables to say
(``WANDB_PROJECT``, ``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``).
metrics.jsonl stays the record: a tracker that fails is left out, and the run goes on.
"""

import importlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, TypeAlias

from etils import epath

from bert_jax.errors import UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.files.yaml_file import read_yaml
from bert_jax.train.sections import TrackerName

IDS: Final = "trackers.json"  # in the run directory: under which ids a resumed run goes on
PROJECT: Final = "bert_jax"
_CONFIG: Final = "config.yaml"


class WandbTracker:
    """A run of Weights & Biases; curves are drawn over `step`, also after going back."""

    def __init__(self, run_dir: epath.Path, identity: str | None) -> None:
        self.identity = identity or uuid.uuid4().hex[:12]
        self._run = _library("wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            id=self.identity,
            resume="allow",
            config=_settings(run_dir),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Sends figures of one kind (`train`, `validation`)."""
        self._run.log({f"{kind}/{name}": value for name, value in figures.items()} | {"step": step})

    def close(self) -> None:
        """Sends what is buffered."""
        self._run.finish()


class MlflowTracker:
    """A run of MLflow."""

    def __init__(self, run_dir: epath.Path, identity: str | None) -> None:
        mlflow = _library("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient()
        if identity is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            made = self._client.create_run(experiment, run_name=run_dir.name)
            identity = str(made.info.run_id)
        self.identity = identity
        self._client.log_dict(identity, _settings(run_dir), _CONFIG)

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Sends figures of one kind (`train`, `validation`)."""
        now = int(time.time() * 1000)
        metrics = [
            self._metric(f"{kind}/{name}", float(value), now, step)
            for name, value in figures.items()
        ]
        self._client.log_batch(self.identity, metrics=metrics)

    def close(self) -> None:
        """Ends the run."""
        self._client.set_terminated(self.identity, "FINISHED")


Tracker: TypeAlias = WandbTracker | MlflowTracker

_KINDS: Final[Mapping[TrackerName, type[Tracker]]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


class Trackers:
    """The trackers of a run. What one of them raises is said once, and leaves it out."""

    def __init__(
        self, run_dir: epath.Path, names: Sequence[TrackerName], *, say: Callable[[str], None]
    ) -> None:
        """Opens them; a run that resumes goes on under the ids that it had.

        `say` gets a line about one that fails.
        """
        self._say = say
        self._open: dict[str, Tracker] = {}
        path = run_dir / IDS
        ids = read_json_object(path) if names and path.exists() else {}
        for name in names:
            try:
                tracker = _KINDS[name](run_dir, ids.get(name))
            except UserError:
                raise
            except Exception as error:  # each has its own
                self._leave_out(name, error)
                continue
            self._open[name] = tracker
            ids[name] = tracker.identity
        if self._open:
            write_whole(path, json.dumps(ids).encode())

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Sends figures to all of them."""
        for name, tracker in list(self._open.items()):
            self._try(name, lambda each=tracker: each.write(kind, step, figures))

    def close(self) -> None:
        """Ends them all."""
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)
        self._open.clear()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # each has its own
            self._open.pop(name, None)
            self._leave_out(name, error)

    def _leave_out(self, name: str, error: Exception) -> None:
        self._say(
            f"{name}: {type(error).__name__}: {first_line(error)}; the run goes on without it"
        )


def require_trackers(names: Sequence[TrackerName], *, key: str) -> None:
    """Refuses a tracker that is not installed; UserError: naming the setting's key."""
    for name in names:
        try:
            _library(name)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"{name} is not installed, allowed: pip install {name}") from None


def _settings(run_dir: epath.Path) -> dict[str, Any]:
    path = run_dir / _CONFIG
    found = read_yaml(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}
