import csv
import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from etils import epath
from rich.console import Console

from bert_jax.config import RunConfig, parse_config
from bert_jax.errors import Diverged, RunStopped
from bert_jax.files.lock import LocalLock
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.predictor import Predictor
from bert_jax.train.loop import Outcome
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.verbs.export import export
from bert_jax.verbs.finetune import finetune, finetune_settings
from bert_jax.workflows import sweep as sweep_verb
from bert_jax.workflows.finetuning import FinishedRun, run_finetuning
from tests.project import Refusal, invoke, ok, refused, refuses, says, write_config
from tests.tasks.runs import tiny_config

pytestmark = pytest.mark.slow

RATE, TOO_LOW, TOO_HIGH = 1e-3, 1e-6, 1.0
DECAY = 50  # lets runs with the rate `TOO_HIGH` diverge


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration with 8 positions, so that only one program is compiled."""
    optimizer = {"learning_rate": RATE, "weight_decay": DECAY}
    return tiny_config(tmp_path_factory.mktemp("base"), max_length=8, optimizer=optimizer)


def config(base: dict[str, Any], run_dir: Path, **changes: Any) -> RunConfig:
    values = base | {"run_dir": str(run_dir), "finetune": base["finetune"] | changes}
    return parse_config(values, source="test")


def sweep_output(config: RunConfig, **options: Any) -> str:
    """The output of a sweep."""
    out = io.StringIO()
    finetune(config, console=Console(file=out, width=200), **options)
    return out.getvalue()


def dies_after(count: int, ran: list[str]) -> Any:
    """Replaces `run_finetuning`. Records run names and interrupts the sweep after `count` runs."""

    def run(prepared: Any, root: Any, predictor: Predictor, **options: Any) -> Any:
        if len(ran) == count:
            raise KeyboardInterrupt
        ran.append(root.name)
        return run_finetuning(prepared, root, predictor, **options)

    return run


SWEEP = {"seeds": 2, "learning_rates": [RATE, TOO_LOW, TOO_HIGH]}


@pytest.fixture(scope="module")
def swept(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of six runs, killed after the first run and resumed.

    For each seed, one run diverges and one run learns nothing.
    """
    root, ran = tmp_path_factory.mktemp("swept") / "run", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_verb, "run_finetuning", dies_after(1, ran))
        with pytest.raises(KeyboardInterrupt):
            sweep_output(config(base, root, sweep=SWEEP))
        assert not (root / "config.yaml").exists()
        patch.setattr(sweep_verb, "run_finetuning", dies_after(9, ran))
        (root.parent / "out").write_text(sweep_output(config(base, root, sweep=SWEEP)))
    assert len(ran) == len(set(ran)) == 6
    assert list(runs(root)) == ran
    return root


def runs(root: Path) -> dict[str, dict[str, Any]]:
    return {run["name"]: run for run in json.loads((root / "sweep.json").read_text())["runs"]}


def curves(root: Path, name: str) -> dict[str, float]:
    """Returns every metric of a run except speeds and times."""
    return {
        f"{line['kind']} {line['step']} {key}": value
        for line in read_metrics(root / "runs" / name)
        for key, value in line.items()
        if line["kind"] not in ("speed", "goodput") and key != "kind"
    }


def test_a_sweeps_run_equals_an_ordinary_run_bit_for_bit(
    base: dict[str, Any], swept: Path, tmp_path: Path
) -> None:
    name = "seed1-lr0.001-epochs2"
    finetune(config(base | {"seed": 1}, tmp_path / "runs" / name), console=Console(quiet=True))
    assert curves(tmp_path, name) == curves(swept, name)
    ours, theirs = (
        load_params(open_run(root / "runs" / name), checkpoint="last").params
        for root in (swept, tmp_path)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_failed_runs_are_flagged_and_others_continue(swept: Path) -> None:
    found = runs(swept)
    for seed in (0, 1):
        assert found[f"seed{seed}-lr0.001-epochs2"]["degenerate"] is None
        assert found[f"seed{seed}-lr1e-06-epochs2"]["degenerate"] is not None
        broken = found[f"seed{seed}-lr1.0-epochs2"]
        assert broken["score"] is None
        assert re.match(r"stopped: step \d+: .*(nan|inf)", broken["degenerate"]), broken
    cells = json.loads((swept / "sweep.json").read_text())["cells"]
    assert [cell["degenerate"] for cell in cells] == [0, 2, 2]


def test_the_table_lists_rates_and_marks_the_best(swept: Path) -> None:
    out = (swept.parent / "out").read_text()
    scores = [runs(swept)[f"seed{seed}-lr0.001-epochs2"]["score"] for seed in (0, 1)]
    deviation = abs(scores[0] - scores[1]) / math.sqrt(2)
    assert "6 runs, 1 of them done" in out
    (line,) = [line for line in out.splitlines() if line.startswith("│") and " 0.001 " in line]
    assert f"{np.mean(scores):.1%} ± {deviation:.1%}" in line
    assert f"{max(scores):.1%} *" in line
    table = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    (failed,) = [row for row in table if row[1:2] == ["1"]]
    assert failed[3:-1] == ["2", "–", "–", "–", "–", "2", "–"]
    rows = list(csv.DictReader((swept / "sweep.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == list(runs(swept))


def test_a_sweeps_best_run_is_an_ordinary_run_directory(swept: Path, tmp_path: Path) -> None:
    best = json.loads((swept / "sweep.json").read_text())["best"]
    own = yaml.safe_load((swept / "config.yaml").read_text())
    section = own["finetune"]
    rate = section["optimizer"]["learning_rate"]
    assert best == f"seed{own['seed']}-lr{rate}-epochs{section['epochs']}"
    evaluated = ok("evaluate", swept)
    assert f"{runs(swept)[best]['score']:.1%}" in evaluated
    texts = tmp_path / "texts.csv"
    texts.write_text("text\ngood1 word3 good2\nbad1 word3 bad0 bad3\n")
    ok("predict", swept, tmp_path / "out.jsonl", "--input", texts)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["prediction"] for answer in answers] == ["good", "bad"]
    export(str(swept), str(tmp_path / "hf"))
    assert (tmp_path / "hf" / "model.safetensors").exists()
    report = (swept / "report.html").read_text()
    assert report.count(">degenerate<") >= 2


def test_a_finished_sweep_only_shows_its_table(
    base: dict[str, Any], swept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_verb, "run_finetuning", lambda *_, **__: pytest.fail("ran again"))
    out = sweep_output(config(base, swept, sweep=SWEEP))
    table = out.splitlines()
    assert table == (swept.parent / "out").read_text().splitlines()[-len(table) :]


def test_a_signal_stops_a_sweep(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = FinishedRun(Outcome(3, True, {}, epath.Path(tmp_path)), None)
    monkeypatch.setattr(sweep_verb, "run_finetuning", lambda *_, **__: stopped)
    assert finetune(config(base, tmp_path), seeds=2, console=Console(quiet=True)).interrupted
    assert not runs(tmp_path)
    assert not (tmp_path / "config.yaml").exists()


def test_a_sweep_without_a_good_run_writes_no_best_run(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise Diverged("test.diverged", "loss not finite", place="step 3")

    monkeypatch.setattr(sweep_verb, "run_finetuning", breaks)
    with refuses("sweep.no_score", kind=RunStopped, runs=2, path=tmp_path / "sweep.json"):
        sweep_output(config(base, tmp_path, sweep={}), seeds=2)
    reasons = {run["degenerate"] for run in runs(tmp_path).values()}
    assert reasons == {"stopped: step 3: loss not finite"}
    assert not (tmp_path / "config.yaml").exists()


def test_a_sweep_that_loses_its_lock_stops_and_resumes(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes the lock after the first run ends and before it is recorded."""
    root, names = tmp_path / "run", [f"seed{seed}-lr0.001-epochs2" for seed in (0, 1)]
    record = root / "sweep.json"
    before: list[str] = []

    def lose_lock(lock: LocalLock) -> None:
        if (root / "runs" / names[0] / "report.html").exists():
            before.append(record.read_text())
            raise RunStopped("lock.lost", "lost by this test")

    file = write_config(tmp_path / "config.yaml", base | {"run_dir": str(root)})
    with monkeypatch.context() as patch:
        patch.setattr(LocalLock, "check", lose_lock)
        result = invoke("finetune", file, "--seeds", 2)
    assert result.exit_code == 1, (result.output, result.exception)
    assert result.stderr.splitlines() == ["bert-jax: lost by this test [lock.lost]"]
    assert before == [record.read_text()]
    assert not runs(root)
    assert [path.name for path in (root / "runs").iterdir()] == names[:1]
    assert "2 runs" in ok("finetune", file, "--seeds", 2)
    assert list(runs(root)) == names
    assert all(run["score"] is not None for run in runs(root).values())


def refuse(
    base: dict[str, Any], directory: Path, run_dir: Path, *more: str, **changes: Any
) -> Refusal:
    values = base | {"run_dir": str(run_dir), "finetune": base["finetune"] | changes}
    return refused("finetune", write_config(directory / "config.yaml", values), *more)


def test_a_sweep_of_other_settings_is_refused(
    base: dict[str, Any], swept: Path, tmp_path: Path
) -> None:
    with refuses("sweep.seeds", place="--seeds", found=0):
        finetune(config(base, tmp_path / "new"), seeds=0)
    assert not (tmp_path / "new").exists()
    before = sorted(swept.rglob("*"))
    said = refuse(base, tmp_path, swept, "--seeds", "3", sweep=SWEEP)
    says(said, key="sweep.two_seeds", found=3, other=2)
    said = refuse(base, tmp_path, swept, "--seeds", "3", sweep=SWEEP | {"seeds": 3})
    assert said.key == "run.other_setting"
    says(said, place="finetune.sweep.seeds")
    says(said, found=3, what="sweep", expected=2)
    said = refuse(base, tmp_path, swept, batch_size=32, sweep=SWEEP)
    says(said, key="run.other_setting", place="finetune.batch_size")
    says(said, found=32)
    assert refuse(base, tmp_path, swept).key == "run.other_setting"
    single = swept / "runs" / "seed0-lr0.001-epochs2"
    said = refuse(base, tmp_path, single, "--seeds", "2")
    says(said, key="sweep.single_run", directory=str(single))
    assert sorted(swept.rglob("*")) == before


def test_one_point_is_an_ordinary_run(base: dict[str, Any], tmp_path: Path) -> None:
    asked = config(base, tmp_path, sweep={"learning_rates": [3e-4], "epochs": [5]})
    wanted, points = sweep_verb.plan(finetune_settings(asked), seeds=None)
    assert len(points) == 1
    assert wanted.finetune.optimizer.learning_rate == 3e-4
    assert (wanted.finetune.epochs, wanted.finetune.sweep) == (5, None)


def test_a_record_with_another_score_is_refused(
    base: dict[str, Any], swept: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(swept, root)
    content = json.loads((root / "sweep.json").read_text())
    changed = content["runs"][1]
    changed["score"] = 0.99
    (root / "sweep.json").write_text(json.dumps(content))
    said = refuse(base, tmp_path, root, sweep=SWEEP)
    assert said.key == "file.changed"
    says(said, place=f"{root / 'sweep.json'}: run {changed['name']}")
