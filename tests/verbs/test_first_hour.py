"""The report of `doctor --first-hour`, without a TPU: names of metadata, losses, resumption."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config import load_config
from bert_jax.diagnostics import host_facts
from bert_jax.diagnostics.host_facts import Answer
from bert_jax.diagnostics.machine import installed
from bert_jax.files.host_lock import HostLock
from bert_jax.verbs import first_hour
from tests.launch.cloud_vm import TOKEN, metadata_server
from tests.project import invoke, ok, project_config, refused, says, write_config

pytestmark = pytest.mark.slow

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "orbax-checkpoint")


@pytest.fixture
def config(project: Path, tmp_path: Path) -> Path:
    values: dict[str, Any] = project_config(project) | {"run_dir": str(tmp_path / "run")}
    values["train"]["phases"][0]["steps"] = 24
    values["optimizer"] |= {"learning_rate": 1e-2, "warmup_steps": 10_000}
    return write_config(tmp_path / "run.yaml", values)


@pytest.fixture
def of_this_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Replaces the hosts' lock by the versions here; returns these versions."""
    versions: dict[str, Any] = {name: installed(name) for name in PACKAGES}
    python = ".".join(platform.python_version_tuple()[:2])
    lock = HostLock(python, "", versions)
    monkeypatch.setattr(host_facts, "host_lock", lambda accelerator: lock)
    return versions


@pytest.fixture
def no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")


def answers(report: Path) -> dict[str, dict[str, Any]]:
    return {each["topic"]: each for each in json.loads(report.read_text())["answers"]}


def test_the_planned_time_of_a_step_is_that_of_plan(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trial = first_hour._trial(load_config(config, ["mesh={data: -1}"]), tmp_path)
    write_config(tmp_path / "trial.yaml", trial.model_dump(mode="json"))
    seconds, reason = first_hour._planned(tmp_path / "trial.yaml", "v5litepod-4")
    assert not reason
    assert seconds is not None
    assert 0 < seconds < 0.1
    unknown, reason = first_hour._planned(tmp_path / "trial.yaml", "v5litepod-5")
    assert unknown is None
    assert "topology.size" in reason


def test_the_report_covers_machine_losses_and_resumption(
    config: Path,
    tmp_path: Path,
    of_this_environment: dict[str, str | None],
    no_metadata: None,
) -> None:
    report = tmp_path / "report.json"
    shown = ok("doctor", config, "--first-hour", report).splitlines()
    found = answers(report)
    assert {topic: each["verdict"] for topic, each in found.items()} == {
        **dict.fromkeys(("system", "packages", "machine", "devices", "loss", "resume"), "ok"),
        **dict.fromkeys(("metadata", "kernels", "step time"), "unknown"),
    }
    for topic, each in found.items():
        assert f"{each['verdict']:<8}{topic}: {each['text']}" in shown
    assert found["packages"]["facts"]["found"]["jax"] == of_this_environment["jax"]
    assert "2 × cpu" in found["devices"]["text"]
    losses = [found[topic]["facts"]["losses"].split() for topic in ("loss", "resume", "kernels")]
    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 24
    assert "do not run" in found["kernels"]["text"]
    assert found["step time"]["facts"]["measured"] > 0
    assert "no TPU" in found["step time"]["text"]
    # The trial leaves the run alone.
    assert not (tmp_path / "run").exists()


def test_another_version_and_unusable_inputs_differ(
    config: Path,
    tmp_path: Path,
    of_this_environment: dict[str, str | None],
    no_metadata: None,
) -> None:
    of_this_environment["jax"] = "0.0.1"
    report = tmp_path / "report.json"
    result = invoke("doctor", config, "train.phases.0.dataset=none", "--first-hour", report)
    assert result.exit_code == 1, result.output
    found = answers(report)
    assert found["packages"]["verdict"] == "differs"
    assert found["packages"]["facts"]["lock"]["jax"] == "0.0.1"
    assert found["devices"]["verdict"] == "differs"
    assert "dataset: none" in found["devices"]["text"]
    assert found["trial"]["verdict"] == "unknown"
    assert "loss" not in found


def test_the_report_has_names_of_metadata_and_values_of_the_tpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_the_tpu = {
        "accelerator-type": "v5litepod-4",
        "agent-worker-number": "0",
        "worker-network-endpoints": "unknown:unknown:10.0.0.2",
        "tpu-env": "ZONE: 'us-west4-a'\n",
    }
    secret = {"startup-script": "SECRET script", "ssh-keys": "SECRET key"}
    names = "\n".join([*of_the_tpu, *secret])
    with metadata_server({"": names, **of_the_tpu, **secret}) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        found = host_facts.metadata()
    assert found.verdict == "ok"
    assert found.facts == {"names": sorted([*of_the_tpu, *secret]), "values": of_the_tpu}
    assert "SECRET" not in repr(found)
    assert TOKEN not in repr(found)
    del of_the_tpu["tpu-env"]
    with metadata_server({"": "\n".join(of_the_tpu), **of_the_tpu}) as address:
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        assert host_facts.metadata() == Answer(
            "metadata",
            "differs",
            "missing: tpu-env",
            {"names": sorted(of_the_tpu), "values": of_the_tpu},
        )


def test_losses_and_times_have_limits() -> None:
    falling = [4.0, 3.0, 2.0, 1.0]
    assert first_hour._falling(falling).verdict == "ok"
    assert first_hour._falling(falling[::-1]).verdict == "differs"
    near, far = [4.0, 3.0, 2.0, 1.009], [4.0, 3.0, 2.0, 1.011]
    assert first_hour._kernels(falling, near, used=True).verdict == "ok"
    assert first_hour._kernels(falling, near, used=False).verdict == "unknown"
    assert first_hour._kernels(falling, far, used=True).verdict == "differs"
    assert first_hour._resumed(falling, near, exact=False).verdict == "ok"
    assert first_hour._resumed(falling, near, exact=True).verdict == "differs"
    assert first_hour._step_time(0.149, 0.1, "").verdict == "ok"
    assert first_hour._step_time(0.151, 0.1, "").verdict == "differs"
    assert first_hour._step_time(0.066, 0.1, "").verdict == "differs"


def test_a_report_needs_one_process_and_a_configuration_of_pretraining(
    config: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert refused("doctor", "--first-hour", report).key == "first_hour.config"
    several = refused("doctor", config, "--first-hour", report, "mesh.distributed.enabled=true")
    assert several.key == "first_hour.processes"
    finetuning = refused("doctor", "finetune/mrpc", "--first-hour", report)
    says(finetuning, key="setting.needed", place="train")
    assert not report.exists()
