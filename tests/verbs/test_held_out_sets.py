"""Evaluation on several held-out sets: scores, best checkpoint, rules that warn or end a run."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_jax.config import parse_config
from bert_jax.files.seal import sealed, unsealed
from bert_jax.train.checkpoint_manifest import read_manifest
from bert_jax.train.metrics_writer import read_metrics
from tests.project import Refusal, ok, one_phase, refused, refuses, says, write_config
from tests.verbs.test_data_position import cut_back

pytestmark = pytest.mark.slow

STEPS, EVERY = 12, 4
SCORES = ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
SETS = {"domain": "dataset32", "general": "dataset48"}


@pytest.fixture(scope="module")
def values(project: Path) -> dict[str, Any]:
    """A run whose losses rise, because its learning rate is too high."""
    sets = {name: str(project / dataset) for name, dataset in SETS.items()}
    checkpoint = {"every": EVERY, "keep_last": STEPS}
    evaluation = {"every": EVERY, "sets": sets}
    values = one_phase(project, steps=STEPS, evaluation=evaluation, checkpoint=checkpoint)
    values["train"]["phases"][0]["seq_length"] = 48
    values["optimizer"]["learning_rate"] = 0.5
    return values


@pytest.fixture(scope="module")
def config(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


LIMIT = 'train.evaluation.at_most={"general.mlm_loss": 0.3}'


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    """A run that forgets more than allowed, and only warns."""
    run_dir = config.parent / "run"
    output = ok("pretrain", config, f"run_dir={run_dir}", LIMIT)
    rises = [line for line in output.splitlines() if "above the start" in line]
    assert [line.partition(": general.mlm_loss ")[0] for line in rises] == [
        f"step {step}" for step in (4, 8, 12)
    ]
    assert all(line.endswith("allowed: 0.3") for line in rises)
    return run_dir


def scores_of(run_dir: Path) -> dict[int, dict[str, float]]:
    """Returns the scores of every evaluation by step."""
    lines = read_metrics(run_dir, kind="validation")
    found = {line["step"]: line for line in lines}
    assert len(found) == len(lines)
    return {
        step: {name: line[name] for name in line.keys() - {"kind", "step"}}
        for step, line in found.items()
    }


def steps_of(run_dir: Path) -> list[int]:
    return sorted(int(path.name) for path in (run_dir / "checkpoints").iterdir())


def test_every_set_has_the_scores_of_its_own_evaluation(run: Path, project: Path) -> None:
    found = scores_of(run)
    assert list(found) == [0, 4, 8, 12]
    names = {f"{held_out}.{score}" for held_out in SETS for score in SCORES}
    assert all(scores.keys() == names for scores in found.values())
    for step in (4, 12):
        for held_out, dataset in SETS.items():
            ok("evaluate", run, "--dataset", project / dataset, "--checkpoint", step)
            (path,) = (run / "evaluations").glob(f"*{dataset}-validation-{step}.json")
            alone = json.loads(path.read_text())["scores"]
            assert alone == {score: found[step][f"{held_out}.{score}"] for score in SCORES}
    shown = ok("evaluate", run)
    assert json.loads((run / "evaluation.json").read_text())["scores"] == found[STEPS]
    assert all(name in shown for name in names)


def test_the_best_checkpoint_has_the_best_weighted_loss(
    run: Path, config: Path, tmp_path: Path
) -> None:
    other = cut_back(run, tmp_path / "other", step=4)
    weights = {"domain.mlm_loss": 0.7, "general.nsp_loss": 3.0}
    ok("pretrain", config, f"run_dir={other}", f"train.evaluation.best_by={json.dumps(weights)}")
    means = {f"{held_out}.loss": 0.5 for held_out in SETS}
    for run_dir, wanted, steps in ((run, means, (4, 8, 12)), (other, weights, (8, 12))):
        scores = scores_of(run_dir)
        for step in steps:
            score = read_manifest(run_dir / "checkpoints" / str(step), step=step).score
            assert score is not None
            expected = sum(weight * scores[step][name] for name, weight in wanted.items())
            assert score.value == pytest.approx(expected, rel=1e-12)


def test_a_run_ends_when_it_forgets_too_much_and_goes_on_without_the_limit(
    run: Path, config: Path, tmp_path: Path
) -> None:
    stop, stopped = "train.evaluation.on_exceeded=stop", tmp_path / "stopped"
    for _ in range(2):  # the second command finds an ended run
        output = ok("pretrain", config, f"run_dir={stopped}", LIMIT, stop)
        assert "stopped at step 4: general.mlm_loss" in output
        assert steps_of(stopped) == [4]
    assert scores_of(stopped) == {step: scores_of(run)[step] for step in (0, 4)}
    # A resumed run compares with the start of the first command.
    output = ok("pretrain", config, f"run_dir={stopped}", LIMIT)
    assert scores_of(stopped) == scores_of(run)
    start, *_, last = (scores["general.mlm_loss"] for scores in scores_of(run).values())
    assert "step 4: general.mlm_loss" in output
    assert f"step {STEPS}: general.mlm_loss {last:.5g} is {last - start:.3g} above" in output
    # Scores on other examples cannot be compared with the start.
    line = refused("pretrain", config, f"run_dir={stopped}", LIMIT, "train.evaluation.examples=9")
    says(line, key="evaluation.no_start", place="train.evaluation.at_most")


def test_patience_counts_in_a_resumed_run(config: Path, tmp_path: Path) -> None:
    names = ("patience=2", "best_by=domain.mlm_loss", "at_start=true")
    rules = [f"train.evaluation.{name}" for name in names]
    whole = tmp_path / "whole"
    output = ok("pretrain", config, f"run_dir={whole}", *rules)
    assert "stopped at step 8: 2 evaluations without a better domain.mlm_loss" in output
    assert steps_of(whole) == [4, 8]
    cut = cut_back(whole, tmp_path / "cut", step=4)
    output = ok("pretrain", config, f"run_dir={cut}", *rules)
    assert "stopped at step 8: 2 evaluations" in output
    assert scores_of(cut) == scores_of(whole)


def test_a_resumed_run_needs_its_start_and_its_sets(
    values: dict[str, Any], config: Path, tmp_path: Path
) -> None:
    run_dir = f"run_dir={tmp_path / 'run'}"
    ok("pretrain", config, run_dir, "train.phases.0.steps=4")
    line = refused("pretrain", config, run_dir, LIMIT)
    says(
        line, key="evaluation.no_start", place="train.evaluation.at_most", found="general.mlm_loss"
    )
    sets = values["train"]["evaluation"]["sets"]
    one = f"train.evaluation.sets={json.dumps({'domain': sets['domain']})}"
    line = refused("pretrain", config, run_dir, one)
    says(line, key="run.other_setting", place="train.phases.0.validation")
    ok("pretrain", config, run_dir, one, "--allow-data-change")
    assert not any(name.startswith("general") for name in scores_of(tmp_path / "run")[8])


@pytest.mark.parametrize(
    ("evaluation", "key", "place", "found"),
    [
        ({"dataset": "a", "sets": {"b": "b"}}, "evaluation.dataset_and_sets", "sets", {}),
        ({"sets": {"Big": "a"}}, "evaluation.set_name", "sets.Big", {"found": "Big"}),
        ({"sets": {"a.b": "a"}}, "evaluation.set_name", "sets.a.b", {}),
        ({"sets": {"ema": "a"}}, "evaluation.set_name", "sets.ema", {}),
        ({"sets": {"a": ""}}, "path.empty", "sets.a", {}),
        ({"sets": {"a": 5}}, "setting.value", "sets.a", {"found": 5}),
        ({"sets": ["a"]}, "setting.value", "sets", {}),
        (
            {"sets": {"a": "a"}, "at_most": {"a.mlm_accuracy": 0.1}},
            *("evaluation.not_a_loss", "at_most.a.mlm_accuracy", {"allowed": "mlm_loss"}),
        ),
        ({"at_most": {"mlm_loss": -0.1}}, "setting.value", "at_most.mlm_loss", {"found": -0.1}),
        ({"at_most": {"loss": 0.1}}, "evaluation.at_most_data", "dataset", {}),
        ({"on_exceeded": "stop"}, "setting.ignored", "on_exceeded", {"allowed": "at_most"}),
        ({"best_by": "mlm_accuracy"}, "evaluation.not_a_loss", "best_by.mlm_accuracy", {}),
        ({"best_by": {"loss": 0}}, "setting.value", "best_by.loss", {"found": 0}),
        ({"best_by": 3}, "setting.value", "best_by", {"found": 3}),
        ({"best_by": {}}, "setting.value", "best_by", {}),
        ({"patience": 0}, "setting.value", "patience", {"found": 0}),
    ],
    ids=str,
)
def test_wrong_sets_and_rules_are_refused_by_their_setting(
    evaluation: dict[str, Any], key: str, place: str, found: dict[str, Any]
) -> None:
    phases = [{"dataset": name, "steps": 1} for name in ("x", "y")]
    values = {"run_dir": "run", "train": {"phases": phases, "evaluation": evaluation}}
    with refuses(key, place=f"run.yaml: train.evaluation.{place}", **found):
        parse_config(values, source="run.yaml")


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ({"best_by": "mlm_loss"}, "best_by"),
        ({"at_most": {"general.nsp_los_loss": 0.1}}, "at_most"),
        ({"stop_at": {"metric": "domain.mlm_acc", "at_least": 0.1}}, "stop_at.metric"),
    ],
    ids=str,
)
def test_a_rule_for_an_unknown_score_is_refused_before_training(
    config: Path, tmp_path: Path, rule: dict[str, Any], place: str
) -> None:
    (name,), (wanted,) = rule.keys(), rule.values()
    line = refused(
        "pretrain",
        config,
        f"run_dir={tmp_path / 'run'}",
        f"train.evaluation.{name}={json.dumps(wanted)}",
    )
    allowed = [f"{held_out}.{score}" for held_out in SETS for score in SCORES]
    says(line, key="evaluation.unknown_score", place=f"train.evaluation.{place}", allowed=allowed)
    assert not (tmp_path / "run" / "config.yaml").exists()


def with_provenance(source: Path, target: Path, **changes: Any) -> str:
    """Copies a dataset, and changes its provenance."""
    shutil.copytree(source, target)
    path = target / "provenance.json"
    path.write_text(json.dumps(sealed(unsealed(json.loads(path.read_text())) | changes)))
    return str(target)


def test_a_set_without_pairs_has_no_scores_of_pairs(
    config: Path, project: Path, tmp_path: Path
) -> None:
    pairing = {"kind": "doc_sentences", "dupe_factor": 1, "short_seq_prob": 0.0}
    made = json.loads((project / "dataset48" / "provenance.json").read_text())["pairing"]
    bare = with_provenance(project / "dataset48", tmp_path / "bare", pairing=made | pairing)
    rule, run_dir = "train.evaluation.best_by=general.nsp_loss", f"run_dir={tmp_path / 'run'}"
    line = refused("pretrain", config, run_dir, rule, f"train.evaluation.sets.general={bare}")
    says(line, key="evaluation.unknown_score", allowed=["domain.nsp_loss", "general.mlm_loss"])
    assert "general.nsp_accuracy" not in line


def test_doctor_finds_the_set_that_is_in_the_training_data(
    config: Path, project: Path, tmp_path: Path
) -> None:
    made = json.loads((project / "dataset48" / "provenance.json").read_text())
    train, validation = (made["splits"][name] for name in ("train", "validation"))
    swapped = tmp_path / "swapped"
    splits = {"train": validation, "validation": train}
    with_provenance(project / "dataset48", swapped, splits=splits)
    (swapped / "train.lengths.npy").rename(swapped / "lengths")
    (swapped / "validation.lengths.npy").rename(swapped / "train.lengths.npy")
    (swapped / "lengths").rename(swapped / "validation.lengths.npy")
    weights = {str(project / "dataset32"): 0.5, str(project / "dataset48"): 0.5}
    output = ok(
        "doctor",
        config,
        f"train.phases.0.dataset={json.dumps(weights)}",
        f"train.evaluation.sets.general={swapped}",
    )
    pattern = r"(ok|warn) +overlap: train.evaluation.sets.(\w+): \S+ contains (\S+)%"
    found = re.findall(pattern, output)
    assert [level for level, *_ in found] == ["ok", "ok", "warn", "warn"]
    assert [name for _, name, _ in found] == ["domain", "domain", "general", "general"]
    shares = [float(share) for *_, share in found]
    assert shares[:2] == [0, 0]
    assert 10 < shares[2] < shares[3] == 100
    assert output.count(f"dataset: {project / 'dataset32'}, ") == 1


def test_a_set_that_does_not_fit_is_named(config: Path, project: Path, tmp_path: Path) -> None:
    def line_of(general: str, *more: str) -> Refusal:
        wanted = (f"train.evaluation.sets.general={general}", *more)
        line = refused("pretrain", config, f"run_dir={tmp_path / 'run'}", *wanted)
        assert line.place.startswith("train.evaluation.sets.general")
        return line

    whole = project / "dataset48"
    assert line_of("nowhere").key == "dataset.missing"
    other = with_provenance(whole, tmp_path / "other", tokenizer_hash="0" * 64)
    says(line_of(other), key="dataset.other_tokenizer", found=other)
    made = json.loads((whole / "provenance.json").read_text())
    bare = with_provenance(whole, tmp_path / "bare", splits={"train": made["splits"]["train"]})
    says(line_of(bare), key="dataset.split_unknown", found="validation")
    says(line_of(str(whole), "train.phases.0.seq_length=32"), key="dataset.example_too_long")
    order = with_provenance(whole, tmp_path / "order", pairing=made["pairing"] | {"kind": "sop"})
    says(line_of(order), key="objective.pairing", found=["sop", "bert"])
