"""A run that takes seconds, for tests with several processes."""

from pathlib import Path
from typing import Any

import pytest

from tests.processes.hosts import start
from tests.project import made_once, project_config, write_config
from tests.run_config import DROPOUT

STEPS = 8


@pytest.fixture(scope="session")
def values(project: Path) -> dict[str, Any]:
    """One phase of a few steps, evaluated and saved half-way."""
    values = project_config(project)
    values["mesh"] = {"platform": "cpu"}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": STEPS}],
        "log_every": 2,
        "evaluation": {"every": 4, "examples": 24},
        "checkpoint": {"every": 4},
    }
    values["model"]["architecture"] |= DROPOUT
    return values


@pytest.fixture(scope="session")
def config(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's configuration file."""
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


@pytest.fixture(scope="session")
def alone(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in one process. Tests must not write into it."""

    def make(run: Path) -> None:
        out = tmp_path_factory.mktemp("alone")
        with start("pretrain", config, f"run_dir={run}", count=1, directory=out) as job:
            assert job.wait() == [0], job.said()

    return made_once(tmp_path_factory, "alone", make)
