"""A run needs only the permissions of roles/storage.objectUser on its bucket."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from bert_jax.train import checkpoint_orbax
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.processes.hosts import start
from tests.project import ok, project_config, write_config
from tests.storage.cloud import Cloud

pytestmark = pytest.mark.slow

BUCKET_PERMISSIONS = frozenset(f"storage.buckets.{verb}" for verb in ("get", "list", "create"))


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_killed_during_a_save_saves_that_step_again(
    cloud: Cloud, project: Path, tmp_path: Path, count: int
) -> None:
    """The whole life of a run: dataset, programs, lock, saves, deletions, restore, export."""
    bucket = cloud.make_bucket()
    run = bucket / "run"
    for path in (project / "dataset32").iterdir():
        (bucket / "dataset32" / path.name).write_bytes(path.read_bytes())
    values: dict[str, Any] = project_config(project) | {"run_dir": str(run)}
    values["mesh"] = {"platform": "cpu", "compilation_cache": {"directory": f"{bucket}/compiled"}}
    values["loader"] = {"cache": {"directory": str(tmp_path / "cache")}}
    phase = values["train"]["phases"][0] | {"dataset": f"{bucket}/dataset32", "steps": 6}
    saves = {"every": 2, "keep_last": 1}
    values["train"] |= {"phases": [phase], "checkpoint": saves, "evaluation": None, "log_every": 1}
    config = write_config(tmp_path / "run.yaml", values)
    cloud.proxy.missing = BUCKET_PERMISSIONS
    cloud.proxy.unwritable = "run/checkpoints/4/manifest.json"
    how = {"count": count, "directory": tmp_path, "environment": cloud.environment}
    with start("pretrain", config, **how) as job:
        job.wait_until(lambda: cloud.proxy.failed["refused"] > 0)
        job.kill()
    assert (run / "checkpoints" / "4" / "params").exists()
    cloud.proxy.unwritable = ""
    (run / ".lock").unlink()  # the next processes would wait 45 s for the dead holder
    with start("pretrain", config, **how) as job:
        assert job.wait() == [0] * count, job.said()
    assert "resuming at step 2 of 6" in job[0].out
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["6"]
    assert list((bucket / "compiled").iterdir())
    ok("export", run, tmp_path / "hf")
    assert not BUCKET_PERMISSIONS & cloud.proxy.failed.keys()


def test_a_refused_request_of_orbax_fails_only_the_save(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orbax has a Google client of its own. Here, it deletes the unfinished checkpoint."""
    checkpoints = cloud.make_bucket() / "run" / "checkpoints"
    (checkpoints / "1" / "params" / "left").write_text("unfinished")
    monkeypatch.setattr(checkpoint_orbax, "delete_checkpoint", lambda directory: None)
    cloud.proxy.missing = BUCKET_PERMISSIONS
    said: list[str] = []
    section = CheckpointSection(on_error="warn")
    with Checkpointer(checkpoints, section, say=said.append) as checkpointer:
        checkpointer.save_params({"w": jnp.ones(4)}, step=1)
        (line,) = said
        assert "storage.buckets.get" in line
        monkeypatch.undo()
        checkpointer.save_params({"w": jnp.ones(4)}, step=2)
    assert (checkpoints / "2" / "manifest.json").exists()
