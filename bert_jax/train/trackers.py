"""Weights & Biases and MLflow: ``train.trackers: [wandb, mlflow]``.

Install the packages separately. Their environment variables set the destination
(``WANDB_PROJECT``, ``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``).
If a tracker fails, the run continues without it.
"""

import functools
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

IDS: Final = "trackers.json"  # file in the run directory; a resumed run reads the trackers' ids
PROJECT: Final = "bert_jax"
_CONFIG: Final = "config.yaml"


class WandbTracker:
    """A run of Weights & Biases. The x axis is our `step`, which may decrease after a rollback."""

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

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Sends metrics, such as ``{"train/loss": 6.9}``."""
        self._run.log({**figures, "step": step})

    def close(self) -> None:
        """Sends buffered metrics and ends the run."""
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

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Sends metrics, such as ``{"train/loss": 6.9}``."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, float(value), now, step) for name, value in figures.items()]
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
    """The trackers of a run. If one fails, the run continues without it."""

    def __init__(
        self, run_dir: epath.Path, names: Sequence[TrackerName], *, say: Callable[[str], None]
    ) -> None:
        """Opens the trackers; a resumed run continues their previous runs.

        `say` prints a warning if a tracker fails.
        """
        self._say = say
        self._open: dict[str, Tracker] = {}
        path = run_dir / IDS
        ids = read_json_object(path) if names and path.exists() else {}
        for name in names:
            self._try(name, lambda name=name: self._start(name, run_dir, ids))
        if self._open:
            write_whole(path, json.dumps(ids).encode())

    def _start(self, name: TrackerName, run_dir: epath.Path, ids: dict[str, Any]) -> None:
        self._open[name] = tracker = _KINDS[name](run_dir, ids.get(name))
        ids[name] = tracker.identity

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Sends metrics of one kind, such as `train`, to all trackers."""
        named = {f"{kind}/{name}": value for name, value in figures.items()}
        for name, tracker in list(self._open.items()):
            self._try(name, functools.partial(tracker.write, step, named))

    def close(self) -> None:
        """Ends all trackers."""
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)
        self._open.clear()

    def _try(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except UserError:
            raise
        except Exception as error:  # each tracker has its own errors
            self._open.pop(name, None)
            what = f"{name}: {type(error).__name__}: {first_line(error)}"
            self._say(f"{what}; the run continues without it")


def require_trackers(names: Sequence[TrackerName], *, key: str) -> None:
    """Raises UserError, naming the setting `key`, if a tracker is not installed."""
    for name in names:
        try:
            _library(name)
        except UserError as error:
            raise error.located(key) from None


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            "tracker.not_installed", f"not installed. Run pip install {name}.", place=name
        ) from None


def _settings(run_dir: epath.Path) -> dict[str, Any]:
    path = run_dir / _CONFIG
    found = read_yaml(path) if path.exists() else {}
    return found if isinstance(found, dict) else {}
