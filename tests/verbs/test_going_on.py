"""Runs that go on: from checkpoints on local disks, and after an evaluation that was cut short."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner, Result
from etils import epath

from bert_jax.cli.commands import cli
from bert_jax.errors import UserError
from bert_jax.files.lock import LocalLock, LockLost
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.stop_signal import STOP
from bert_jax.runs.checkpoints import load_params, write_checkpoints
from bert_jax.runs.directory import open_run
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.checkpoint_local import LocalCheckpoints
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.sections import CheckpointSection, LocalCheckpointSection
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.writer import read_metrics
from tests.project import project_config, write_config
from tests.train.checkpoints import abstract, state_at

STEPS = 8


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated and saved at every fourth of eight steps, on the local disk at each."""
    directory = tmp_path_factory.mktemp("config")
    values = project_config(project)
    values["mesh"] = {"platform": "cpu", "data": 4, "fsdp": 2}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": STEPS}],
        "evaluation": {"every": 4, "examples": 24},
        "checkpoint": {"every": 4, "local": {"directory": str(directory / "local"), "every": 1}},
        "log_every": 1,
    }
    return write_config(directory / "run.yaml", values)


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> Path:
    run_dir = config.parent / "undisturbed"
    ok("pretrain", config, f"run_dir={run_dir}")
    return run_dir


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def ok(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def local_steps(config: Path, run_dir: Path) -> dict[int, Path]:
    """The local checkpoints of a run, by step."""
    found = (config.parent / "local").glob("*/process_0/*")
    known = (run_dir / "local_checkpoints.json").read_text()
    return {
        int(path.name): path
        for path in found
        if path.name.isdecimal()
        and (path / "saved.json").read_text().partition('"start": "')[2][:32] in known
    }


def assert_same_run(found: Path, expected: Path) -> None:
    ours, theirs = (
        sorted(str(line) for line in read_metrics(run) if line["kind"] not in ("speed", "goodput"))
        for run in (found, expected)
    )
    assert ours == theirs
    params = [
        jax.device_get(load_params(open_run(run), checkpoint="last").params)
        for run in (found, expected)
    ]
    jax.tree.map(np.testing.assert_array_equal, *params)


def flip(path: Path) -> None:
    """Flips a bit in the middle."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    """Leaves the first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_run_goes_on_from_the_newest_whole_local_checkpoint(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """As if it had been killed in step 8, and its disk had damaged step 7."""
    run_dir = tmp_path / "run"
    ok("pretrain", config, f"run_dir={run_dir}")
    shutil.rmtree(run_dir / "checkpoints" / "8")
    saved = local_steps(config, run_dir)
    assert sorted(saved) == [6, 7]  # those of every fourth step are in the run directory
    flip(saved[7] / "pieces.npz")
    result = ok("pretrain", config, f"run_dir={run_dir}")
    assert "resuming at step 6 of 8" in result.output
    (line,) = (line for line in result.stderr.splitlines() if "WARNING" in line)
    assert f"{saved[7].parent}: NOT WHOLE: checkpoint 7: pieces.npz has SHA-256" in line
    assert_same_run(run_dir, undisturbed)

    shutil.rmtree(run_dir / "checkpoints" / "8")
    shutil.rmtree(saved[6].parent)
    result = ok("pretrain", config, f"run_dir={run_dir}")
    assert "resuming at step 4 of 8" in result.output
    assert "WARNING" not in result.stderr  # a machine that is new has nothing to be warned of
    assert_same_run(run_dir, undisturbed)


def test_local_checkpoints_of_a_run_that_was_deleted_are_not_taken_for_those_of_a_new_one(
    tmp_path: Path,
) -> None:
    section = LocalCheckpointSection(directory=str(tmp_path / "local"), every=1)
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    run_dir, said = epath.Path(tmp_path / "run"), []

    def opened() -> LocalCheckpoints:
        return LocalCheckpoints(section, run_dir, mesh, say=said.append)

    run_dir.mkdir()
    first = opened()
    for step in (1, 2, 3):
        first.save(state_at(step), step=step, progress={"step": step})
    first.close()
    again = opened()
    assert again.newest(above=0) == 3
    assert again.newest(above=3) is None
    restored = again.restore(abstract(), step=3)
    jax.tree.map(np.testing.assert_array_equal, restored, state_at(3))
    assert again.progress(3) == {"step": 3}
    again.forget_after(2)  # the run goes on from step 2
    assert again.newest(above=0) == 2
    again.close()
    run_dir.rmtree()
    run_dir.mkdir()
    new = opened()
    assert new.newest(above=0) is None
    new.close()
    assert not said


@pytest.fixture
def three_local(tmp_path: Path) -> Callable[[list[str]], LocalCheckpoints]:
    """Opens the local checkpoints of a run that has saved three; `said` gets what it says."""
    section = LocalCheckpointSection(directory=str(tmp_path / "local"), every=1, keep=3)
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    run_dir = epath.Path(tmp_path / "run")
    run_dir.mkdir()

    def opened(said: list[str]) -> LocalCheckpoints:
        return LocalCheckpoints(section, run_dir, mesh, say=said.append)

    with contextlib.closing(opened([])) as first:
        for step in (1, 2, 3):
            first.save(state_at(step), step=step, progress={"step": step})
    return opened


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("name", ["pieces.npz", "saved.json", "manifest.json"])
def test_a_damaged_local_checkpoint_is_named_once_and_passed_over(
    three_local: Callable[[list[str]], LocalCheckpoints],
    tmp_path: Path,
    name: str,
    harm: Callable[[Path], None],
) -> None:
    said: list[str] = []
    (damaged,) = (tmp_path / "local").glob("*/process_0/3")
    harm(damaged / name)
    for _ in range(2):
        with contextlib.closing(three_local(said)) as again:
            assert again.newest(above=0) == again.newest(above=1) == 2
            again.forget_after(2)
    (line,) = said
    assert line.startswith(f"{damaged.parent}: NOT WHOLE: checkpoint 3: {name}"), line


@pytest.mark.parametrize(
    ("old", "new", "newest", "said"),
    [
        ('"starts"', '"stasts"', None, 'found "sha256, stasts", allowed: starts'),
        ('"sha256"', '"sha257"', 3, 'found "sha257", allowed: starts, sha256'),
        ('s": ["', 's": ["0', None, "found other values than were written (its sha256 differs)"),
    ],
)
def test_a_damaged_register_of_starts_is_named(
    three_local: Callable[[list[str]], LocalCheckpoints],
    tmp_path: Path,
    old: str,
    new: str,
    newest: int | None,
    said: str,
) -> None:
    register, lines = tmp_path / "run" / "local_checkpoints.json", []
    text = register.read_text()
    assert old in text
    register.write_text(text.replace(old, new))
    with contextlib.closing(three_local(lines)) as again:
        assert again.newest(above=0) == newest
    (line,) = lines
    assert f"{register}: NOT WHOLE: {said}" in line
    with contextlib.closing(three_local(lines)):
        assert len(lines) == 1  # it is whole again


def open_both(run_dir: Path | str, local: Path) -> Checkpointer:
    """The checkpoints of a run directory, and those on this host's own disk."""
    tier = LocalCheckpointSection(directory=str(local), every=1, keep=9)
    mesh = make_mesh(MeshSection(data=1), jax.devices()[:1])
    return write_checkpoints(run_dir, CheckpointSection(local=tier), mesh=mesh)


@pytest.mark.parametrize(
    ("damaged", "newest", "without_local"),
    [([8], 7, 4), ([4, 8], 7, None)],
    ids=["the newest", "all"],
)
def test_a_local_checkpoint_is_newer_than_the_whole_one_before_a_damaged_one(
    tmp_path: Path, damaged: list[int], newest: int, without_local: int | None
) -> None:
    run_dir, local = tmp_path / "run", tmp_path / "local"
    run_dir.mkdir()
    with open_both(run_dir, local) as checkpoints:
        for step in (4, 5, 6, 7, 8):
            saved = {"step": step, "progress": {"step": step}}
            if step % 4:
                checkpoints.save_local(state_at(step), **saved)
            else:
                checkpoints.save(state_at(step), **saved)
    for step in damaged:
        flip(run_dir / "checkpoints" / str(step) / "params" / "manifest.ocdbt")
    with open_both(run_dir, local) as checkpoints:
        assert checkpoints.latest_step() == newest
        assert checkpoints.progress(newest) == {"step": newest}
        restored = checkpoints.restore_params(abstract().params, step=newest)
        jax.tree.map(np.testing.assert_array_equal, restored, state_at(newest).params)
    shutil.rmtree(local)
    with open_both(run_dir, local) as checkpoints:
        if without_local is None:
            with pytest.raises(UserError, match="no whole checkpoint"):
                checkpoints.latest_step()
        else:
            assert checkpoints.latest_step() == without_local


def test_runs_of_one_relative_name_keep_their_local_checkpoints_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project, step in (("one", 1), ("two", 2)):
        (tmp_path / project / "runs" / "base").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / project)
        with open_both("runs/base", tmp_path / "local") as checkpoints:
            checkpoints.save_local(state_at(step), step=step, progress={})
    for project, step in (("one", 1), ("two", 2)):
        with open_both(tmp_path / project / "runs" / "base", tmp_path / "local") as checkpoints:
            assert checkpoints.latest_step() == step


@pytest.mark.parametrize(
    ("local", "said"),
    [
        ("{directory: gs://bucket/x}", "allowed: a local path"),
        ("{directory: /proc/x}", "cannot write /proc/x/"),
        ("{directory: /x, every_minutes: null}", "found none, nor every_minutes"),
        ("{every: 2}", "train.checkpoint.local.directory: missing"),
    ],
)
def test_a_local_directory_that_cannot_be_is_one_line(
    config: Path, tmp_path: Path, local: str, said: str
) -> None:
    result = invoke(
        "pretrain", config, f"run_dir={tmp_path / 'run'}", f"train.checkpoint.local={local}"
    )
    assert result.exit_code == 2, result.output
    assert "train.checkpoint.local" in result.stderr
    assert said in result.stderr


class Killed(Exception):
    """The process ends here."""


def die(*_: object) -> None:
    raise Killed


def test_a_signal_cuts_an_evaluation_short_and_the_next_start_makes_up_for_it(
    config: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, batches = tmp_path / "run", []

    def signal_at_the_second() -> None:
        batches.append(len(batches))
        if len(batches) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            while not STOP._request.signal:  # the thread that hears it
                time.sleep(0.001)
        between_batches()

    between_batches = STOP.between_batches
    with monkeypatch.context() as patched:
        patched.setattr(STOP, "between_batches", signal_at_the_second)
        result = invoke("pretrain", config, f"run_dir={run_dir}")
    assert result.exit_code == 3, result.output
    assert "stopped at step 4, saved" in result.output
    assert len(batches) == 2
    assert not read_metrics(run_dir, kind="validation")
    with monkeypatch.context() as patched:  # makes up for it, and is killed before the next step
        patched.setattr(StepTracker, "remaining_phases", die)
        assert isinstance(invoke("pretrain", config, f"run_dir={run_dir}").exception, Killed)
    assert [line["step"] for line in read_metrics(run_dir, kind="validation")] == [4]
    said = ok("pretrain", config, f"run_dir={run_dir}").output
    assert said.index("resuming at step 4") < said.index("step 4 validation")
    assert_same_run(run_dir, undisturbed)
    steps = [load_params(open_run(r), checkpoint="best").step for r in (run_dir, undisturbed)]
    assert steps[0] == steps[1]


def test_a_run_that_has_lost_its_lock_writes_nothing_more(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    watches: list[Stopwatch] = []
    checks: list[str] = []
    resume = Stopwatch.resume

    def remember(watch: Stopwatch, step: int) -> None:
        watches.append(watch)
        resume(watch, step)

    def lose_it(lock: LocalLock) -> None:
        checks.append(watches[-1].kind)
        if len(checks) == 3:
            raise LockLost("another process has taken the lock")

    monkeypatch.setattr(Stopwatch, "resume", remember)
    monkeypatch.setattr(LocalLock, "check", lose_it)
    result = invoke("pretrain", config, f"run_dir={run_dir}")
    assert result.exit_code == 1, result.output
    assert "another process has taken the lock" in result.stderr
    assert sorted(local_steps(config, run_dir)) == [1, 2]
    assert not list((run_dir / "checkpoints").iterdir())
    assert checks == ["save"] * 3  # a bucket that keeps it waiting is no step that hangs
