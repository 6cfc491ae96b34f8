"""The speedrun: a tiny tier on made-up text, from the corpus to the table."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.equal_flops import rows_until, scaled, total_flops, with_flops
from benchmarks.finished_runs import RunRecord, read_records
from benchmarks.marked_table import inserted
from benchmarks.significance import Spread, welch
from benchmarks.speedrun.__main__ import main
from benchmarks.speedrun.tier import load_tier
from bert_jax.config import parse_config
from bert_jax.data.dataset.reader import open_dataset
from tests.corpus import write_corpus
from tests.project import ROOT, environment, one_phase

rarely = pytest.mark.chaos  # trains 16 models

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PHASE = {"dataset": "made", "steps": 12, "seq_length": 32, "batch_size": 8}
PAGE = """# Records

<!-- speedrun tiny -->
<!-- end -->

<!-- speedrun tiny ablation -->
<!-- end -->
"""


def recipe(**changes: Any) -> dict[str, Any]:
    return {
        "vocab": {"input": ["unused"], "output": "unused", "size": 160, "unused_slots": 0},
        "examples": {"input": ["unused"], "tokenizer": "unused", "output": "unused"},
        "model": {
            "architecture": {
                **SIZES,
                "intermediate_size": 32,
                "max_position_embeddings": 32,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
            "execution": {"dtype": "float32"},
        },
        "mesh": {"platform": "cpu", "data": 2, "fsdp": 4},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 4},
        "train": {"phases": [PHASE], "checkpoint": {"every": 8}, "log_every": 4},
        **changes,
    }


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a task, a page and a tier of two small recipes."""
    root = tmp_path_factory.mktemp("speedrun")
    (root / "corpus").mkdir()
    write_corpus(root / "corpus" / "text.txt", documents=range(40))
    examples = {"kind": "doc_sentences", "workers": 1}
    fast = recipe(
        objective={"kind": "roberta"},
        optimizer={"name": "muon", "learning_rate": 2e-3, "bias_correction": True},
    )
    fast["examples"] |= examples
    fast["train"] = fast["train"] | {"phases": [PHASE | {"packing": {"max_examples": 2}}]}
    for name, values in (("old", recipe()), ("new", fast)):
        (root / f"{name}.yaml").write_text(yaml.safe_dump(values))
    task = {"kind": "glue", "name": "sst2", "data": "unused"}
    tune = {"init_from": "unused", "task": task, "epochs": 1, "max_length": 16, "batch_size": 8}
    values = {"mesh": recipe()["mesh"], "finetune": tune}
    (root / "tune.yaml").write_text(yaml.safe_dump(values))
    (root / "glue" / "SST-2").mkdir(parents=True)
    rows = "".join(f"the {'old' if at % 2 else 'grey'} river\t{at % 2}\n" for at in range(16))
    for split in ("train", "dev"):
        (root / "glue" / "SST-2" / f"{split}.tsv").write_text(f"sentence\tlabel\n{rows}")
    settings = {
        "title": "tiny",
        "devices": 1,
        "corpus": {"origin": "made by the test"},
        "text": ["validation_fraction=0.2", "workers=1", "num_shards=1"],
        "held_out": [
            "kind=doc_sentences",
            "max_seq_length=32",
            "dupe_factor=1",
            "short_seq_prob=0",
        ],
        "evaluations": 3,
        "reference": {"config": str(root / "old.yaml")},
        "recipe": {"config": str(root / "new.yaml")},
        "budget": 0.5,
        "learning_rates": [1, 4],
        "seeds": [1, 2, 3],
        "ablation": {"β2 0.98": ["optimizer.beta2=0.98"]},
        "finetune": {
            "SST-2": {"config": str(root / "tune.yaml"), "data": "SST-2", "metric": "accuracy"}
        },
    }
    (root / "tiny.yaml").write_text(yaml.safe_dump(settings))
    (root / "page.md").write_text(PAGE)
    return root


def command(root: Path, *more: str, tier: str = "tiny.yaml") -> list[str]:
    return [
        str(root / tier),
        *("--corpus", str(root / "corpus"), "--into", str(root / "into")),
        *("--page", str(root / "page.md"), *more),
    ]


@pytest.fixture(scope="module")
def killed(tier: Path) -> dict[str, float]:
    """The first runs of the tier, whose process is killed; the times of their results."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.speedrun", *command(tier)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=environment() | {"JAX_NUM_CPU_DEVICES": "8"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("run tune-new-1"):
                process.kill()
    assert process.returncode == -signal.SIGKILL
    results = tier / "into" / "results"
    return {path.name: path.stat().st_mtime for path in results.iterdir()}


@pytest.fixture(scope="module")
def records(tier: Path, killed: dict[str, float]) -> dict[str, RunRecord]:
    """All results of the tier, after the command was repeated."""
    assert main(command(tier, "--glue", str(tier / "glue"))) == 0
    results = tier / "into" / "results"
    assert killed == {name: (results / name).stat().st_mtime for name in killed}
    assert killed.keys() == {"tune-reference-1.json", "tune-reference-4.json"}
    return read_records(tier / "into")


@rarely
def test_runs_have_equal_seeds_and_at_most_their_flops(records: dict[str, RunRecord]) -> None:
    assert len(records) == 2 * 2 + 2 * 3 + 2 * 3
    reference = [records[f"reference-seed{seed}"] for seed in (1, 2, 3)]
    assert {record.flops for record in reference} == {records["reference-seed1"].flops}
    for seed in (1, 2, 3):
        for name, share in (("new", 0.5), ("new-full", 1.0), ("switch-β2-0.98", 1.0)):
            found = records[f"{name}-seed{seed}"]
            assert found.seed == seed
            assert 0.85 * share < found.flops / reference[0].flops <= share
            assert found.held_out == reference[0].held_out
            assert found.curve[-1].flops == found.flops
            assert found.curve[-1].loss == pytest.approx(found.loss, rel=1e-5)
    best = min((1, 4), key=lambda rate: records[f"tune-new-{rate}"].loss)
    assert records["new-seed1"].learning_rate == 2e-3 * best


@rarely
def test_both_recipes_are_evaluated_on_the_same_rows_without_pairs(
    tier: Path, records: dict[str, RunRecord]
) -> None:
    found = json.loads((tier / "into/runs/reference-seed2/evaluation.json").read_text())
    assert found["scores"].keys() == {"loss", "mlm_loss", "mlm_accuracy"}
    held_out = open_dataset(found["dataset"], "validation")
    assert held_out.fingerprint == records["new-seed2"].held_out
    assert found["examples"] == len(held_out)


@rarely
def test_the_page_has_a_row_for_each_recipe(tier: Path, records: dict[str, RunRecord]) -> None:
    rows = [row.split(" | ") for row in inserted(tier / "page.md", "speedrun tiny")[2:]]
    assert [row[0] for row in rows] == ["| reference", "| new"]
    losses = [records[f"new-seed{seed}"].loss for seed in (1, 2, 3)]
    assert rows[1][5] == Spread.of(losses).text()
    target = Spread.of([records[f"reference-seed{seed}"].loss for seed in (1, 2, 3)]).mean
    curves = [records[f"new-seed{seed}"].curve for seed in (1, 2, 3)]
    means = [sum(point.loss for point in points) / 3 for points in zip(*curves, strict=True)]
    shares = [point.flops / records["reference-seed1"].flops for point in curves[0]]
    below = [share for share, mean in zip(shares, means, strict=True) if mean <= target]
    assert rows[1][7] == (f"{below[0]:.3f}" if below else "—")
    assert "SST-2 " in rows[1][10]
    ablation = inserted(tier / "page.md", "speedrun tiny ablation")
    assert [row.split(" | ")[0] for row in ablation[2:]] == [
        *("| reference", "| β2 0.98", "| all together")
    ]


@rarely
def test_a_broken_rule_is_one_line(
    tier: Path, records: dict[str, RunRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = yaml.safe_load((tier / "tiny.yaml").read_text())

    def refused(**changes: Any) -> str:
        (tier / "other.yaml").write_text(yaml.safe_dump(settings | changes))
        before = (tier / "page.md").read_text()
        assert main(command(tier, tier="other.yaml")) == 2
        assert (tier / "page.md").read_text() == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    other = {"origin": "elsewhere", "sha256": "0" * 64}
    assert refused(corpus=other).endswith("[speedrun.corpus_hash]")
    assert "elsewhere" in refused(corpus=other)
    assert refused(seeds=[1, 2]).startswith("speedrun: ")
    assert refused(seeds=[0, 1, 2]).endswith("[speedrun.seeds]")
    assert refused(budget=0.25).endswith("[benchmark.other_config]")


def test_the_tiers_are_valid() -> None:
    for name in ("laptop", "chip", "pod"):
        found = load_tier(name)
        recipes = [found.reference.load(), found.recipe.load()]
        recipes += [found.reference.load(*overrides) for overrides in found.ablation.values()]
        assert all(recipe.train is not None for recipe in recipes)


def test_steps_are_scaled_to_the_flops(project: Path) -> None:
    values = one_phase(project, steps=100)
    (phase,) = values["train"]["phases"]
    phase["batch_ramp"] = [{"steps": 10, "batch_size": 2}]
    config = parse_config(values)
    assert rows_until(config, 15) == [10 * 2 + 5 * 8]
    assert rows_until(config, 100) == [10 * 2 + 90 * 8]
    half = with_flops(values, total_flops(config) / 2)
    assert 0.98 < total_flops(parse_config(half)) / total_flops(config) * 2 <= 1
    (made,) = half["train"]["phases"]
    assert made["batch_ramp"][0]["steps"] in (4, 5)
    assert scaled(values, 2)["optimizer"]["warmup_steps"] == 8


def test_welchs_test_finds_differences() -> None:
    assert Spread.of([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert welch([1.0, 1.1, 1.2], [2.0, 2.1, 2.3], "less") < 0.001
    assert welch([1.0, 1.1, 1.2], [1.0, 1.1, 1.2], "less") == pytest.approx(0.5)
    assert welch([1.0, 1.0], [2.0, 2.0], "greater") == 1.0
