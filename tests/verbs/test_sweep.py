from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from bert_jax.cli import cli
from bert_jax.config import RunConfig, parse_config
from bert_jax.errors import RunStopped, UserError
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.directory import open_run
from bert_jax.runs.parameters import load_params
from bert_jax.tasks.sweep import run as sweep_verb
from bert_jax.tasks.sweep import run_batched as sweep_together
from bert_jax.tasks.sweep.run_batched import first_state, side_by_side
from bert_jax.tasks.training.run import fine_run
from bert_jax.tasks.training.setup import prepare
from bert_jax.train.dump import StopSignal
from bert_jax.train.writer import read_metrics
from bert_jax.verbs.export import export
from bert_jax.verbs.finetune import finetune
from tests.tasks.runs import tiny_config

RATE, TOO_LOW, TOO_HIGH = 1e-3, 1e-6, 1e30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration; 8 positions, so that there is one length to compile for."""
    return tiny_config(tmp_path_factory.mktemp("base"), max_length=8)


def config(base: dict[str, Any], run_dir: Path, **changes: Any) -> RunConfig:
    values = base | {"run_dir": str(run_dir), "finetune": base["finetune"] | changes}
    return parse_config(values, source="test")


def told(config: RunConfig, **options: Any) -> str:
    """What a sweep prints."""
    out = io.StringIO()
    finetune(config, console=Console(file=out, width=200), **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def together(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs in one program: of each seed one that learns, one that does not, one that breaks."""
    root = tmp_path_factory.mktemp("together") / "run"
    rates = [RATE, TOO_LOW, TOO_HIGH]
    sweep = {"seeds": 2, "learning_rates": rates, "together": "yes"}
    (root.parent / "out").write_text(told(config(base, root, sweep=sweep)))
    return root


@pytest.fixture(scope="module")
def one_by_one(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two of them that learn, through the ordinary loop; killed after the first."""
    root = tmp_path_factory.mktemp("one_by_one") / "run"
    wanted = config(base, root, sweep={"together": "no"})
    ran: list[str] = []

    def killed_after(count: int) -> Any:
        def run(prepared: Any, root: Any, predictor: Any, **options: Any) -> Any:
            if len(ran) == count:
                raise KeyboardInterrupt
            ran.append(root.name)
            return fine_run(prepared, root, predictor, **options)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_verb, "fine_run", killed_after(1))
        with pytest.raises(KeyboardInterrupt):
            told(wanted, seeds=2)
        assert not (root / "config.yaml").exists()
        patch.setattr(sweep_verb, "fine_run", killed_after(9))
        (root.parent / "out").write_text(told(wanted, seeds=2))
    (root.parent / "ran").write_text(" ".join(ran))
    return root


def runs(root: Path) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in json.loads((root / "sweep.json").read_text())["runs"]}


def predictions(root: Path) -> list[dict[str, Any]]:
    lines = (root / "predictions" / "dev.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def curves(root: Path, name: str) -> dict[str, float]:
    """Every figure that was written while a run trained, but its speed."""
    return {
        f"{line['kind']} {line['step']} {key}": value
        for line in read_metrics(root / "runs" / name)
        for key, value in line.items()
        if line["kind"] != "speed" and key != "kind"
    }


def test_each_run_side_by_side_has_the_figures_of_the_ordinary_run(
    together: Path, one_by_one: Path
) -> None:
    ours, theirs = runs(together), runs(one_by_one)
    assert set(theirs) == {f"seed{seed}-lr0.001-epochs2" for seed in (0, 1)}
    for name, run in theirs.items():
        assert ours[name]["step"] == run["step"]
        assert ours[name]["scores"] == pytest.approx(run["scores"])
        assert curves(together, name) == pytest.approx(curves(one_by_one, name), rel=2e-3, abs=1e-6)


def assert_close(ours: Any, theirs: Any) -> None:
    """Within a five-hundredth of what twenty steps of 1e-3 change a parameter by."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), ours, theirs)


def test_the_best_run_is_the_same_and_has_the_same_parameters_and_predictions(
    together: Path, one_by_one: Path
) -> None:
    opened = [open_run(root) for root in (together, one_by_one)]
    assert opened[0].seed == opened[1].seed
    ours, theirs = (load_params(run, checkpoint="best") for run in opened)
    assert ours.step == theirs.step
    assert_close(ours.params, theirs.params)
    for mine, its in zip(predictions(together), predictions(one_by_one), strict=True):
        assert mine["probabilities"] == pytest.approx(its["probabilities"], abs=1e-3)
        assert mine["prediction"] == its["prediction"]


def test_parameters_after_every_step_equal_the_ordinary_loops(
    base: dict[str, Any], one_by_one: Path, tmp_path: Path
) -> None:
    prepared = prepare(config(base, tmp_path))
    points = sweep_verb.plan(config(base, tmp_path), seeds=2)[1]
    group = side_by_side(prepared, points)
    state, step = first_state(prepared, group), group.programs()
    feed = group.feed()
    first = next(feed)
    collectives = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    assert not re.findall(collectives, str(group.lower(state, first.batch).compile().as_text()))
    state, _ = step(state, first.batch)
    for _ in range(19):
        state, _ = step(state, next(feed).batch)
    feed.close()
    assert len(state.params["encoder"]["layers"]["output"]["kernel"].devices()) == 2
    for number, point in enumerate(points):
        last = load_params(open_run(one_by_one / "runs" / point.name), checkpoint="last")
        assert last.step == 20
        ours = group.params_of(state.params, number)
        assert_close(ours, last.params)


def test_batches_of_two_lengths_train_side_by_side_as_in_the_ordinary_loop(tmp_path: Path) -> None:
    base = tiny_config(tmp_path, epochs=1, batch_size=32)
    finetune(config(base, tmp_path / "alone"), console=Console(quiet=True))
    alone = load_params(open_run(tmp_path / "alone"), checkpoint="last")
    prepared = prepare(config(base, tmp_path))
    group = side_by_side(prepared, sweep_verb.plan(config(base, tmp_path), seeds=2)[1])
    state, step = first_state(prepared, group), group.programs()
    feed = group.feed()
    lengths = set()
    for _ in range(alone.step):
        batch = next(feed).batch
        lengths |= {tuple(part["input_ids"].shape for part in batch)}
        state, _ = step(state, batch)
    feed.close()
    # [runs, rows, positions] of each half.
    assert ((2, 16, 8), (2, 16, 20)) in lengths
    assert_close(group.params_of(state.params, 0), alone.params)


def test_runs_that_fail_are_flagged_and_the_others_go_on(together: Path) -> None:
    found = runs(together)
    for seed in (0, 1):
        assert found[f"seed{seed}-lr0.001-epochs2"]["degenerate"] is None
        assert found[f"seed{seed}-lr1e-06-epochs2"]["degenerate"] is not None
        broken = found[f"seed{seed}-lr1e+30-epochs2"]
        assert broken["score"] is None
        assert re.fullmatch(r"not finite at step \d", broken["degenerate"])
    cells = json.loads((together / "sweep.json").read_text())["cells"]
    assert [cell["degenerate"] for cell in cells] == [0, 2, 2]


def test_the_table_has_a_line_for_each_learning_rate_and_marks_the_best(together: Path) -> None:
    out = (together.parent / "out").read_text()
    scores = [runs(together)[f"seed{seed}-lr0.001-epochs2"]["score"] for seed in (0, 1)]
    deviation = abs(scores[0] - scores[1]) / math.sqrt(2)
    assert "6 runs side by side (finetune.sweep.together is yes)" in out
    (line,) = [line for line in out.splitlines() if line.startswith("│") and " 0.001 " in line]
    assert f"{np.mean(scores):.1%} ± {deviation:.1%}" in line
    assert f"{max(scores):.1%} *" in line
    (failed,) = [line for line in out.splitlines() if line.startswith("│") and " 1e+30 " in line]
    assert [cell.strip() for cell in failed.split("│")][3:-1] == ["2", "–", "–", "–", "–", "2", "–"]
    rows = list(csv.DictReader((together / "sweep.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == list(runs(together))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_run_directory_of_a_sweep_is_an_ordinary_run(together: Path, tmp_path: Path) -> None:
    best = json.loads((together / "sweep.json").read_text())["best"]
    own = yaml.safe_load((together / "config.yaml").read_text())
    section = own["finetune"]
    rate = section["optimizer"]["learning_rate"]
    assert best == f"seed{own['seed']}-lr{rate}-epochs{section['epochs']}"
    evaluated = invoke("evaluate", together)
    assert evaluated.exit_code == 0, evaluated.output
    assert f"{runs(together)[best]['score']:.1%}" in evaluated.output
    texts = tmp_path / "texts.csv"
    texts.write_text("text\ngood1 word3 good2\nbad1 word3 bad0 bad3\n")
    predicted = invoke("predict", together, tmp_path / "out.jsonl", "--input", texts)
    assert predicted.exit_code == 0, predicted.output
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["prediction"] for answer in answers] == ["good", "bad"]
    export(str(together), str(tmp_path / "hf"))
    assert (tmp_path / "hf" / "model.safetensors").exists()
    report = (together / "report.html").read_text()
    assert report.count(">degenerate<") >= 2


def test_a_sweep_that_is_done_shows_its_table_again_and_runs_nothing(
    base: dict[str, Any], one_by_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_verb, "fine_run", lambda *_, **__: pytest.fail("ran again"))
    out = told(config(base, one_by_one, sweep={"together": "no"}), seeds=2)
    table = out.splitlines()
    assert table == (one_by_one.parent / "out").read_text().splitlines()[-len(table) :]


def test_a_sweep_that_was_killed_goes_on_with_the_runs_that_are_left(one_by_one: Path) -> None:
    names = ["seed0-lr0.001-epochs2", "seed1-lr0.001-epochs2"]
    assert (one_by_one.parent / "ran").read_text().split() == names
    assert list(runs(one_by_one)) == names
    assert (
        "2 runs one by one (finetune.sweep.together is no), 1 of them done"
        in (one_by_one.parent / "out").read_text()
    )


def test_a_signal_ends_a_program_of_runs_with_nothing_half_written(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Requested(StopSignal):
        def __enter__(self) -> StopSignal:
            self.requested = True
            return self

    monkeypatch.setattr(sweep_together, "StopSignal", Requested)
    sweep = {"seeds": 2, "learning_rates": [RATE, TOO_LOW, TOO_HIGH], "together": "yes"}
    out = io.StringIO()
    outcome = finetune(config(base, tmp_path, sweep=sweep), console=Console(file=out, width=200))
    assert outcome.interrupted
    assert "stopped at step 1; runs side by side are saved when they are done" in out.getvalue()
    assert not runs(tmp_path)
    assert not (tmp_path / "config.yaml").exists()


def test_a_sweep_of_which_no_run_ends_well_says_so_and_writes_no_best_run(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise RunStopped("step 3: loss not finite")

    monkeypatch.setattr(sweep_verb, "fine_run", breaks)
    with pytest.raises(
        RunStopped, match=r"^none of 2 runs ended with a figure; see .*sweep\.json$"
    ):
        told(config(base, tmp_path, sweep={"together": "no"}), seeds=2)
    reasons = {run["degenerate"] for run in runs(tmp_path).values()}
    assert reasons == {"stopped: step 3: loss not finite"}
    assert not (tmp_path / "config.yaml").exists()


def refused(
    base: dict[str, Any], directory: Path, run_dir: Path, *more: str, **changes: Any
) -> str:
    file = directory / "config.yaml"
    values = base | {"run_dir": str(run_dir), "finetune": base["finetune"] | changes}
    file.write_text(yaml.safe_dump(values))
    result = invoke("finetune", file, *more)
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = result.stderr.splitlines()
    return line


def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    base: dict[str, Any], tmp_path: Path
) -> None:
    new = tmp_path / "new"
    with pytest.raises(UserError, match=r"^--seeds: found 0, allowed: 1 or more$"):
        finetune(config(base, new), seeds=0)
    said = refused(base, tmp_path, new, patience=2, sweep={"seeds": 2, "together": "yes"})
    assert 'finetune.sweep.together: found "yes", but finetune.patience' in said
    assert said.endswith("allowed: auto, no")
    assert not new.exists()


def test_a_sweep_of_other_settings_is_refused(
    base: dict[str, Any], one_by_one: Path, tmp_path: Path
) -> None:
    before = sorted(one_by_one.rglob("*"))
    said = refused(base, tmp_path, one_by_one, "--seeds", "3")
    assert f"finetune.sweep.seeds: found 3, but {one_by_one} holds a sweep with 2" in said
    said = refused(base, tmp_path, one_by_one, "--seeds", "2", batch_size=32)
    assert "finetune.batch_size: found 32" in said
    assert "holds a" in refused(base, tmp_path, one_by_one)
    single = one_by_one / "runs" / "seed0-lr0.001-epochs2"
    said = refused(base, tmp_path, single, "--seeds", "2")
    assert said.endswith(f"run_dir: {single} holds a single run; allowed: a new run_dir")
    assert sorted(one_by_one.rglob("*")) == before


def test_one_point_is_an_ordinary_run(base: dict[str, Any], tmp_path: Path) -> None:
    wanted, points = sweep_verb.plan(
        config(base, tmp_path, sweep={"learning_rates": [3e-4], "epochs": [5]}), seeds=None
    )
    assert len(points) == 1
    assert wanted.finetune is not None
    assert wanted.finetune.optimizer.learning_rate == 3e-4
    assert (wanted.finetune.epochs, wanted.finetune.sweep) == (5, None)


@pytest.mark.parametrize(("count", "used"), [(16, 8), (8, 8), (12, 6), (9, 3), (7, 7), (11, 1)])
def test_runs_are_dealt_to_as_many_devices_as_divide_them(count: int, used: int) -> None:
    from bert_jax.parallel.rules import runs_sharding

    sharding = runs_sharding(make_mesh(MeshSection(data=2, fsdp=2, tensor=2)), count)
    assert len(sharding.device_set) == used
    assert sharding.shard_shape((count, 3)) == (count // used, 3)
