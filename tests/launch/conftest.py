"""Fixtures for jobs: a bucket, scripted machines, a configuration."""

import functools
from pathlib import Path
from typing import Any

import pytest

from bert_jax.launch import bundle, preflight
from bert_jax.verbs import jobs, stop, submit, watch
from tests.launch.cloud_jobs import Clock
from tests.launch.scripted import Provider
from tests.project import project_config, write_config
from tests.storage.cloud import _server, cloud  # noqa: F401

_SOFTWARE = functools.cache(bundle.software)  # packed once


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Replaces every launcher with a scripted one."""
    provider = Provider(Clock())
    monkeypatch.setattr(bundle, "software", _SOFTWARE)
    for module in (submit, watch, stop):
        monkeypatch.setattr(module, "launcher_for", lambda section: provider)
    monkeypatch.setattr(jobs, "known_launchers", lambda section, say: [provider])
    return provider


@pytest.fixture
def config(project: Path, tmp_path: Path) -> Path:
    """Writes a configuration for any number of hosts on this machine."""
    values: dict[str, Any] = project_config(project)
    values |= {"run_dir": str(tmp_path / "runs" / "BERT_small.1")}
    values["submit"] = {"poll_seconds": 0.01, "on": "local"}
    values["mesh"] |= {"data": -1}
    return write_config(tmp_path / "run.yaml", values)


@pytest.fixture
def cpu_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows training on the CPU, because hosts of the simulated cloud are local processes."""
    monkeypatch.setattr(preflight, "check_platform", lambda job, mesh: [])
