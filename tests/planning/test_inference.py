"""`bert-jax plan` of a configuration with `score`, compiled for real topologies."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_jax.planning.compiler import Compiler
from bert_jax.planning.request import ForwardRequest
from tests.compiler_pair import compiles_for_tpus
from tests.feature_extraction.runs import PIECES, make_run
from tests.planning.plans import compiled, refused_step
from tests.project import invoke, refused, says
from tests.report.strict_html import Document

pytestmark = pytest.mark.slow

WIDTH, INNER, LAYERS, LENGTH, TOKENS = 128, 256, 2, 64, 1024
MODEL: dict[str, Any] = {
    "architecture": {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INNER,
        "max_position_embeddings": 128,
    },
    "heads": {
        "mlm": False,
        "next_sentence": False,
        "task": "sequence_classification",
        "labels": ["good", "bad"],
    },
}


def written(folder: Path, **changes: Any) -> Path:
    """Writes a configuration with `score`; `changes` are sections or settings of `score`."""
    model = changes.pop("model", MODEL)
    score = {"model": "nowhere", "input": "nowhere", "output": "nowhere", "batch_tokens": TOKENS}
    path = folder / "score.yaml"
    path.write_text(yaml.safe_dump({"model": model, "score": score | changes}), encoding="utf-8")
    return path


@compiles_for_tpus
def test_every_chip_runs_the_compiled_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slices = ("--topology", "v5e:1x1", "--topology", "v5litepod-8")
    arguments = ("plan", written(tmp_path), "--vocab-size", 1000, *slices, "--length", LENGTH)
    shown = invoke(*arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    one, eight = json.loads(shown.stdout)
    assert (one["topology"], eight["topology"]) == ("v5e:1x1", "v5e:2x4")
    batch = one["batch"]
    assert batch["rows"] == TOKENS // LENGTH
    # The head reads only [CLS] of the last layer.
    layer = LENGTH * (8 * WIDTH**2 + 4 * WIDTH * INNER) + 4 * LENGTH**2 * WIDTH
    last = LENGTH * 4 * WIDTH**2 + 4 * WIDTH**2 + 4 * WIDTH * INNER + 4 * LENGTH * WIDTH
    assert batch["useful_flops"] == batch["rows"] * (layer + last)
    names = [each["name"] for each in batch["cycles"]["kernels"] for _ in range(each["calls"])]
    assert sorted(names) == ["attention_forward"] * LAYERS + ["norm_forward"] * (1 + 2 * LAYERS)
    assert batch["cycles"]["uncounted"] == {}
    assert (batch["collectives"], batch["quick"]) == ([], False)
    # Parameters are bfloat16 except for vectors, positions, types and the head.
    parameters = 1024 * WIDTH + LAYERS * (4 * WIDTH**2 + 2 * WIDTH * INNER) + WIDTH**2
    assert 2 * parameters < batch["memory"]["parameters"] < 2.7 * parameters
    for found, chips in ((one, 1), (eight, 8)):
        estimated = found["estimated"]
        rate = estimated["documents_per_second"]
        assert rate == pytest.approx(chips * batch["rows"] / estimated["seconds"])
        hours = estimated["hours_per_billion"]
        assert hours == pytest.approx(1e9 / rate / 3600)
        assert estimated["dollars_per_billion_on_demand"] == pytest.approx(hours * chips * 1.2)
        flops = batch["useful_flops"] / estimated["seconds"]
        assert estimated["mfu"] == pytest.approx(flops / 197e12)
    assert one["estimated"]["seconds"] == eight["estimated"]["seconds"]
    page = tmp_path / "plan.html"
    shown = invoke(*arguments, "--details", "--html", page)
    assert shown.exit_code == 0
    assert "compiling" not in shown.stderr
    verdict = f"v5e:2x4, {eight['verdict']}"
    assert verdict in shown.stdout.splitlines()
    assert "attention_forward" in shown.stdout
    html = page.read_text(encoding="utf-8")
    Document(html)
    assert "norm_forward" in html
    assert eight["verdict"] in html


def test_the_model_and_the_length_are_those_of_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ForwardRequest] = []

    def steps(_: Compiler, requests: list[ForwardRequest], **options: Any) -> list[Any]:
        asked.extend(requests)
        return [compiled(quick=False) for _ in requests]

    monkeypatch.setattr(Compiler, "steps", steps)
    run, _ = make_run(tmp_path, layers=1)
    config = written(tmp_path, model=None, max_length=24)
    arguments = ("plan", config, f"score.model={run}", "--topology", "v6e-8")
    assert invoke(*arguments).exit_code == 0
    assert invoke(*arguments, "score.max_length=null").exit_code == 0
    own, most = asked
    assert (own.length, most.length, own.topology) == (24, 40, "v6e:2x4")
    assert own.vocab_size == len(PIECES)
    assert own.model.resolve(vocab_size=own.vocab_size).num_hidden_layers == 1
    found = refused(*arguments, "--length", "41")
    says(found, key="score.max_length", place="--length", found=41, most=40)
    says(refused(*arguments, "score.result=head"), key="score.head", place="score.model")
    says(refused(*arguments, "--suggest"), key="plan.suggest", place="--suggest")


def test_a_program_that_does_not_fit_has_no_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_large = refused_step(20 << 30, 16 << 30)
    monkeypatch.setattr(Compiler, "steps", lambda *_, **__: [too_large])
    shown = invoke("plan", written(tmp_path), "--vocab-size", 1000, "--topology", "v5e:1x1")
    assert shown.exit_code == 1
    assert "needs 20.0 GiB of 16.0 GiB" in shown.stdout
    assert "$" not in shown.stdout.split("\n")[0]
