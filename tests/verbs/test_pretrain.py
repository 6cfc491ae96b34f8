"""Pretraining through the command line: resuming, init_from, evaluating, filling masks."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from bert_jax.config import load_config
from bert_jax.model.section import HeadsSection
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.open_checkpoints import load_params, write_checkpoints
from bert_jax.runs.run_directory import open_run, write_run
from bert_jax.runs.settings import REPORT
from bert_jax.train.metrics_writer import read_metrics
from tests.project import invoke, ok, one_phase, refused, says, write_config
from tests.report.strict_html import Document, read, rows, words

STEPS = 12
RECORDS = ("config.yaml", "metrics.jsonl", "provenance.json")


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One phase of 12 steps on this process's eight devices."""
    values = one_phase(
        project,
        steps=STEPS,
        evaluation={"every": 6, "examples": 24},
        checkpoint={"every": 6, "keep_last": 1},
        report_texts=3,
    )
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


@pytest.fixture(scope="module")
def trained(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Its output is in `said.txt` in the parent directory."""
    directory = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(directory)
        said = ok("pretrain", config, "run_dir=run")  # relative, as in most configurations
    (directory / "said.txt").write_text(said)
    return directory / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, which the test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def params_of(run_dir: Path, checkpoint: str = "last") -> dict[str, Any]:
    return jax.device_get(load_params(open_run(run_dir), checkpoint=checkpoint).params)


def records(run_dir: Path) -> list[bytes]:
    return [(run_dir / name).read_bytes() for name in RECORDS]


def test_a_run_directory_suffices_for_the_other_verbs(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert {*RECORDS, "tokenizer", "checkpoints", "tensorboard"} <= names
    result = ok("fill-mask", run, "the [MASK] of a [MASK] .", "--top-k", 3)
    shown = [line for line in result.splitlines() if line.startswith("  ")]
    assert len(shown) == 2
    for line in shown:
        chances = [float(chance) for chance in re.findall(r"([\d.]+)%", line)]
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert "[MASK]" not in line


def test_reports_go_to_terminal_json_lines_and_tensorboard(trained: Path) -> None:
    output = (trained.parent / "said.txt").read_text()
    assert "normal MLM loss: 6.5 at the start" in output  # ln(640), for 640 pieces
    assert re.search(
        r"step 12/12 loss \S+ tokens/s \S+ eta 0:00:00 .*mlm_accuracy .*% .*nsp_accuracy .*% "
        r"learning_rate .* input \d+%",
        output,
    )
    order = ["compiling", "step 1 of 12: done after", "step 12/12", "done: 12 steps"]
    places = [output.index(each) for each in order]
    assert places == sorted(places)
    train = read_metrics(trained, kind="train")
    assert [line["step"] for line in train] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in read_metrics(trained, kind="validation")] == [6, 12]
    assert 5.5 < train[0]["mlm_loss"] < 7.5
    assert all(line["tokens_per_second"] > 0 for line in read_metrics(trained, kind="speed"))
    assert list((trained / "tensorboard").glob("events*"))


def curve(document: Document, title: str) -> dict[str, list[tuple[float, float]]]:
    """Returns the points of each line of a chart."""
    (figure,) = (each for each in document.root.iter("figure") if words(each[0][0]) == title)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in json.loads(figure.findtext("script") or "")["data"]["values"]:
        found.setdefault(row["line"], []).append((row["x"], row["y"]))
    return found


def test_the_report_shows_the_metrics_and_fills_masks(trained: Path, run: Path) -> None:
    assert f"report: run/{REPORT}" in (trained.parent / "said.txt").read_text()
    written = (run / REPORT).read_text()
    document = read(written)
    for source, kind in (("training data", "train"), ("held out", "validation")):
        expected = [(line["step"], line["mlm_loss"]) for line in read_metrics(run, kind=kind)]
        assert curve(document, "mlm_loss")[source] == expected
    assert rows(document.root, "Phases")["0"][:2] == ["bert", "12"]
    assert "33,570" in rows(document.root, "Model")["parameters"]
    texts = [item for item in document.root.iter("li") if item.find("dl") is not None]
    assert len(texts) == 3
    for item in texts:
        said = ok("fill-mask", run, words(item[0]), "--top-k", 3)
        filled = [line.split("  ") for line in said.splitlines() if line.startswith("  ")]
        shown = [words(answers).removeprefix("✓ ").split(" · ") for answers in item.iter("dd")]
        assert shown == [line[1:] for line in filled]

    # The verb writes the same page, and still does after damage.
    ok("report", run, "--output", run / "again.html")
    again = read((run / "again.html").read_text())
    assert [words(part) for part in again.root.iter("section")] == [
        words(part) for part in document.root.iter("section")
    ]
    damaged = next((run / "checkpoints" / "12" / "params" / "d").iterdir())
    damaged.write_bytes(b"")
    result = invoke("report", run)
    assert result.exit_code == 0
    assert "has no filled masks: " in result.stderr
    assert curve(read((run / REPORT).read_text()), "mlm_loss") == curve(document, "mlm_loss")


def test_several_reports_are_compared(trained: Path, run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "<script>" / "run"))
    metrics = (run / "metrics.jsonl").read_text().replace('"mlm_loss": 6', '"mlm_loss": 5')
    (other / "metrics.jsonl").write_text(f"{metrics}damaged")
    ok("report", run, f"{other}/", "--output", tmp_path / "both.html")
    document = read((tmp_path / "both.html").read_text())
    names = [f"{run.parent.name}/run", "<script>/run"]
    for source, kind in (("", "train"), (", held out", "validation")):
        assert curve(document, f"mlm_loss{source}") == {
            name: [(line["step"], line["mlm_loss"]) for line in read_metrics(path, kind=kind)]
            for name, path in zip(names, (run, other), strict=True)
        }
    assert not list(document.root.iter("ol"))

    heads, facts = HeadsSection(mlm=True), {"before": 1.5, "after": 1.25}
    words_ = {"new_words": {"kubernetes": 7}, "pieces_per_word": facts}
    start = run_like(trained, tmp_path / "start", heads=heads, **words_)
    train = open_run(trained).settings["train"]
    young = run_like(trained, tmp_path / "young", heads=heads, train=train, init_from=str(start))
    assert "no checkpoint yet" in invoke("report", young).stderr
    model = rows(read((young / REPORT).read_text()).root, "Model and run")
    assert model["start"] == [str(start)]
    assert model["pieces per word"] == ["1.500, with new words 1.250"]

    imported = import_of(trained, tmp_path / "imported", heads=HeadsSection(mlm=True))
    for key, *paths in (("report.imported", imported), ("report.runs", run, run)):
        assert refused("report", *paths).key == key


def test_evaluation_is_the_same_for_any_batch_and_devices(run: Path) -> None:
    scores = []
    for batch_size in (8, 32):
        ok("evaluate", run, "--batch-size", batch_size)
        scores.append(json.loads((run / "evaluation.json").read_text()))
    assert scores[0]["examples"] == scores[1]["examples"] > 64
    for name, value in scores[0]["scores"].items():
        assert scores[1]["scores"][name] == pytest.approx(value, rel=1e-5)


def test_only_the_last_and_the_best_checkpoints_are_kept(trained: Path) -> None:
    lines = read_metrics(trained, kind="validation")
    best = min(lines, key=lambda line: line["loss"])["step"]
    steps = {int(path.name) for path in (trained / "checkpoints").iterdir()}
    assert steps == {STEPS, best}
    result = refused("evaluate", trained, "--checkpoint", "7")
    assert result.key == "checkpoint.unknown"
    says(result, found="7")
    says(result, allowed=["last", "best", *map(str, sorted(steps))])


def test_a_finished_run_extends_on_another_mesh_and_rate(config: Path, run: Path) -> None:
    more = ("train.phases.0.steps=14", "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2")
    rate = "optimizer.learning_rate=0.5"
    result = ok("pretrain", config, f"run_dir={run}", *more, rate)
    assert "resuming at step 12 of 14" in result
    assert "step 14/14" in result
    assert "step 12/14" not in result
    assert [line["step"] for line in read_metrics(run, kind="train")][-2:] == [12, 14]
    assert "optimizer.learning_rate: 0.001 up to step 12, 0.5 from here on" in result
    assert json.loads((run / "provenance.json").read_text())["changes"] == [
        {"step": 12, "key": "optimizer.learning_rate", "was": 0.001, "now": 0.5},
        {"step": 12, "key": "train.phases.0.steps", "was": 12, "now": 14},
    ]
    # The finished phase keeps its settings when another phase is added.
    phase = load_config(config).train.phases[0].model_dump()  # pyright: ignore
    phases = [phase | {"steps": 14, "learning_rate": 0.25}, phase | {"steps": 1}]
    result = refused("pretrain", config, f"run_dir={run}", f"train.phases={json.dumps(phases)}")
    assert result.key == "optimizer.replaced"
    says(result, place="optimizer.learning_rate")
    says(result, found=0.001, expected=0.25)


@pytest.mark.parametrize(
    ("name", "value"),
    [("optimizer.learning_rate", 0.5), ("seed", 4), ("train.phases.0.steps", 8)],
)
def test_a_finished_run_keeps_its_own_settings(
    config: Path, trained: Path, name: str, value: float
) -> None:
    before = records(trained)
    result = refused("pretrain", config, f"run_dir={trained}", f"{name}={value}")
    assert result.key == "run.other_setting"
    says(result, place=name, found=value)
    says(result, run=str(trained), what="finished run")
    assert records(trained) == before


def test_a_finished_run_accepts_harmless_settings(config: Path, run: Path) -> None:
    free = (
        *("train.log_every=1", "train.checkpoint.every=3", "train.evaluation.every=2"),
        *("mesh.data=8", "mesh.fsdp=1", "loader.workers=1"),
    )
    ok("pretrain", config, f"run_dir={run}", *free)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("seed", 4, "run.other_setting"),
        ("objective.masking.unit", "whole_word", "run.other_setting"),
        ("train.phases.0.batch_size", 40, "resume.batch_size"),
        ("model.architecture.hidden_size", 64, "run.other_model"),
    ],
)
def test_a_run_does_not_resume_as_another_one(
    config: Path, trained: Path, name: str, value: Any, key: str
) -> None:
    before = records(trained)
    more = "train.phases.0.steps=20"
    result = refused("pretrain", config, f"run_dir={trained}", more, f"{name}={value}")
    says(result, key=key, found=value)
    assert name.endswith(result.place)
    assert records(trained) == before


def test_init_from_draws_missing_heads_afresh(config: Path, trained: Path, tmp_path: Path) -> None:
    heads = HeadsSection(pooler=False, next_sentence=False)
    source, run_dir = import_of(trained, tmp_path / "imported", heads=heads), tmp_path / "run"
    one_step = (
        "train.phases.0.steps=1",
        "optimizer.warmup_steps=1",
    )  # the learning rate is zero, so parameters keep their initial values
    result = ok("pretrain", config, f"run_dir={run_dir}", *one_step, "--init-from", source)
    assert f"{source}: randomly initialized: the pooler, the next-sentence head" in result
    found, given = params_of(run_dir), params_of(trained)
    for part in found:
        same = jax.tree.map(np.array_equal, found[part], given[part])
        assert all(jax.tree.leaves(same)) == (part not in ("pooler", "next_sentence")), part
    # A resumed run does not need the model that it started from.
    shutil.rmtree(source)
    ok("pretrain", config, f"run_dir={run_dir}", *one_step)
    origin = json.loads((run_dir / "provenance.json").read_text())["init_from"]
    assert origin == str(source)


def run_like(
    trained: Path, directory: Path, *, heads: HeadsSection, train: Any = None, **origin: Any
) -> Path:
    """Writes a run directory without a checkpoint."""
    run = open_run(trained)
    write_run(
        epath.Path(directory),
        {**run.settings, "train": train},
        run_dir=str(directory),
        execution=run.model.execution,
        heads=heads,
        architecture=run.architecture,
        tokenizer=run.tokenizer,
        origin=origin,
    )
    return directory


def import_of(trained: Path, directory: Path, *, heads: HeadsSection) -> Path:
    """Returns an imported run whose model has these heads."""
    run_like(trained, directory, heads=heads)
    run, device = open_run(trained), open_mesh(one_device=True)
    params = load_params(run, checkpoint="last", mesh=device).params
    lacking = {"pooler": heads.pooler, "next_sentence": heads.next_sentence}
    kept = {part: value for part, value in params.items() if lacking.get(part, True)}
    with write_checkpoints(directory) as checkpoints:
        checkpoints.save_params(kept, step=0)
    return directory


def test_init_from_copies_only_the_parameters(config: Path, trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    # The first step of a warm-up has a learning rate of zero.
    one_step = ("train.phases.0.steps=1", "optimizer.warmup_steps=1", "train.log_every=1")
    command = ("pretrain", config, f"run_dir={run_dir}", *one_step, "--init-from", trained)
    rows = open_run(trained).architecture.vocab_size
    other = refused(*command, f"model.architecture.vocab_size={rows + 1}")
    assert other.key == "init_from.other_model"
    says(other, place="model.architecture.vocab_size")
    says(other, found=rows + 1, expected=rows)
    ok(*command, f"model.architecture.vocab_size={rows}")
    assert [line["step"] for line in read_metrics(run_dir, kind="train")] == [1]
    assert read_metrics(run_dir, kind="train")[0]["learning_rate"] == 0.0
    source, started = params_of(trained), params_of(run_dir)
    jax.tree.map(np.testing.assert_array_equal, started, source)
