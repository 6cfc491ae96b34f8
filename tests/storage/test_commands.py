"""A whole job on a bucket, through the command line, while 5% of requests fail."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from bert_jax.files import bucket as client
from bert_jax.files import download
from bert_jax.launch import host_paths
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.verbs import submit as submit_verb
from bert_jax.verbs import submit_checks
from tests.launch.scripted import Clock, ScriptedLauncher
from tests.processes.hosts import start
from tests.project import MESH, ok, project_config, refused, says, write_config
from tests.storage.cloud import Cloud
from tests.storage.faults import Faults
from tests.tasks.runs import write_table

pytestmark = pytest.mark.slow

STEPS = 12


def params_of(run_dir: epath.PathLike) -> dict[str, Any]:
    return jax.device_get(load_params(open_run(run_dir), checkpoint="last").params)


def config_of(directory: Path, run_dir: epath.Path) -> Path:
    values = {"run_dir": str(run_dir), "mesh": {"platform": "cpu"}}
    return write_config(directory / "doctor.yaml", values)


@pytest.fixture(scope="module")
def config(
    cloud: Cloud, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[epath.Path, Path]:
    """Returns a bucket with a tokenizer, and the path of a configuration."""
    bucket = cloud.make_bucket()
    for path in (project / "tokenizer").iterdir():
        (bucket / "tokenizer" / path.name).write_bytes(path.read_bytes())
    values = project_config(project)
    values |= {"tokenizer": f"{bucket}/tokenizer", "run_dir": f"{bucket}/run"}
    values["examples"] |= {"tokenizer": f"{bucket}/tokenizer", "output": f"{bucket}/dataset32"}
    values["mesh"] = MESH
    values["loader"] = {"cache": {"directory": str(tmp_path_factory.mktemp("cache"))}}
    phase = {"dataset": f"{bucket}/dataset32", "steps": STEPS, "seq_length": 32, "batch_size": 8}
    values["train"] |= {
        "phases": [phase],
        "log_every": 1,
        "evaluation": {"every": 6, "examples": 24, "sets": {"held": f"{bucket}/dataset32"}},
        "checkpoint": {"every": 6},
    }
    return bucket, write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


@pytest.fixture(scope="module")
def bucket(cloud: Cloud, config: tuple[epath.Path, Path]) -> epath.Path:
    """Returns a bucket to which `examples` and `pretrain` wrote while requests failed."""
    bucket, path = config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "FIRST_PAUSE_SECONDS", 0.05)
        cloud.proxy.inject(Faults.share(0.05, seed=5))
        ok("examples", path)
        ok("pretrain", path)
        assert min(cloud.proxy.failed[kind] for kind in ("refused", "reset", "slow")) > 1
        # Simulates a kill during the last save.
        (bucket / "run" / "checkpoints" / str(STEPS)).rmtree()
        said = ok("pretrain", path)
        assert f"resuming at step 6 of {STEPS}" in said
    cloud.proxy.reset()
    assert "<html" in (bucket / "run" / "report.html").read_text()
    return bucket


def test_a_run_on_a_failing_bucket_equals_one_on_disk(
    bucket: epath.Path, config: tuple[epath.Path, Path], project: Path, tmp_path: Path
) -> None:
    made = {path.name: path.read_bytes() for path in (bucket / "dataset32").iterdir()}
    assert made == {path.name: path.read_bytes() for path in (project / "dataset32").iterdir()}

    ok(
        *("pretrain", config[1], f"run_dir={tmp_path / 'run'}"),
        f"train.phases.0.dataset={project / 'dataset32'}",
    )
    held, expected = params_of(bucket / "run"), params_of(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, held, expected)
    for kind, count in (("train", STEPS), ("validation", 2)):
        found = read_metrics(bucket / "run", kind=kind)
        assert len(found) == count
        assert found == read_metrics(tmp_path / "run", kind=kind)


def test_every_verb_reads_a_run_in_a_bucket(bucket: epath.Path, tmp_path: Path) -> None:
    run = bucket / "run"
    assert f"step {STEPS} {bucket}/dataset32 " in ok("evaluate", run)
    assert (run / "evaluation.json").exists()
    ok("fill-mask", run, "the [MASK] of a day .")
    ok("export", run, tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors").exists()
    assert f"{run} can be written" in ok("doctor", config_of(tmp_path, run))


def test_submitted_fine_tuning_reads_the_submitters_files(
    bucket: epath.Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Submits a local file and a file in the bucket, and runs the host's command."""
    dev = bucket / "tables" / "dev.csv"
    dev.write_bytes(write_table(tmp_path, 16, 2).read_bytes())
    train = write_table(tmp_path, 32, 1)
    task = {"kind": "table", "text": "text", "label": "label"}
    task |= {"train": str(train), "dev": "tables/dev.csv"}
    finetune = {"init_from": "run", "task": task, "max_length": 8, "epochs": 1, "batch_size": 16}
    path = write_config(tmp_path / "tune.yaml", {"run_dir": "tuned", "finetune": finetune})
    cloud = ScriptedLauncher(Clock())
    monkeypatch.setattr(submit_verb, "launcher_for", lambda section: cloud)
    monkeypatch.setattr(submit_checks, "_cloud", lambda job: [])
    options = ("--verb", "finetune", "--on", "v5e-8", "--zone", "us-west4-a", "--project", "p")
    options += ("--bucket", bucket, "--yes", "--no-limit", "--name", "tune")
    missing = refused("submit", path, *options, "finetune.init_from=google-bert/bert-base-uncased")
    assert missing.key == "submit.input_missing"
    assert "hf://owner/name" in missing
    missing = refused("submit", path, *options, "finetune.task.dev=tables/deb.csv")
    assert missing.key == "submit.input_missing"
    says(missing, place=f"finetune.task.dev: {bucket}/tables/deb.csv")
    with monkeypatch.context() as patch:
        patch.setattr(host_paths, "LARGEST_BYTES", 100)
        assert refused("submit", path, *options).key == "submit.upload_size"
    assert not (bucket / "files").exists()

    shown = ok("submit", path, *options, "--dry-run", "--full")
    line = rf"^({bucket}/files/sha256-\S+)  [\d,]+ bytes, from {train}$"
    (target,) = re.findall(line, shown, re.MULTILINE)
    said = ok("submit", path, *options)
    assert f"uploading {train} (0.0 MB)" in said
    assert epath.Path(target).read_bytes() == train.read_bytes()
    again = ok("submit", path, *options[:-1], "again")
    assert "uploading" not in again
    ok("finetune", bucket / "jobs" / "tune" / "config.yaml")
    assert "accuracy" in ok("evaluate", bucket / "tuned")

    epath.Path(target).write_bytes(train.read_bytes() + b"word1,good\n")
    download._copied.cache_clear()
    download._home.cache_clear()
    damaged = refused("finetune", bucket / "jobs" / "again" / "config.yaml", "run_dir=tuned-2")
    says(damaged, key="file.damaged", place=target)


@pytest.mark.parametrize(("stopped", "patience"), [(True, ("600", "1")), (False, ("3", "3"))])
def test_a_run_does_not_wait_for_a_lost_bucket(
    cloud: Cloud,
    bucket: epath.Path,
    config: tuple[epath.Path, Path],
    tmp_path: Path,
    stopped: bool,
    patience: tuple[str, str],
) -> None:
    """The bucket fails during a save. Then a signal arrives, or the time limit is exceeded."""
    run = bucket / ("stopped" if stopped else "gone")
    arguments = ("pretrain", config[1], f"run_dir={run}", "mesh={platform: cpu}")
    with start(
        *(*arguments, "train.phases.0.steps=100000", "train.checkpoint.every=20"),
        "train.evaluation=null",
        count=1,
        directory=tmp_path,
        environment=cloud.environment,
        program=("-m", "tests.storage.impatient", *patience),
    ) as job:
        job.wait_until(lambda: (run / "checkpoints" / "20" / "manifest.json").exists())
        cloud.proxy.down = True
        job.wait_until(lambda: cloud.proxy.failed["refused"] > 0)
        begun = time.monotonic()
        if stopped:
            job[0].send(signal.SIGTERM)
        assert job.wait() == [1], job.said()
    assert time.monotonic() - begun < 60, job.said()
    assert "Traceback" not in job[0].err
    # After the signal, the first failure ends the run: the last save or another request.
    expected = (
        "bert-jax: (stopped by SIGTERM, .* failed: )?gs://" if stopped else f"bert-jax: {run}"
    )
    (line,) = (line for line in job[0].err.splitlines() if line.startswith("bert-jax: "))
    assert re.match(expected, line)
    assert "no answer for" in line
