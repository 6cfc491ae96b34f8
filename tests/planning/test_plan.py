"""`bert-jax plan` end to end: the real steps of a tiny run, compiled for real topologies."""

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from bert_jax.planning import planning
from tests.compiler_pair import compiles_for_tpus
from tests.planning.plans import (
    CONFIG,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    LENGTH,
    PREDICTIONS,
    ROWS,
    VOCABULARY,
)
from tests.project import invoke, refused, says
from tests.report.strict_html import Document

pytestmark = [pytest.mark.slow, compiles_for_tpus]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a configuration and an empty cache."""
    folder = tmp_path_factory.mktemp("plan")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield folder


def run_plan(folder: Path, *arguments: str) -> Result:
    """Runs `plan` from the command line. The compiler runs in separate processes."""
    return invoke("plan", folder / "run.yaml", "--vocab-size", VOCABULARY, *arguments)


@pytest.fixture(scope="module")
def planned(workplace: Path) -> dict[str, Any]:
    """Plans the tiny run for four v5e chips."""
    result = run_plan(workplace, "--topology", "v5litepod-4", "--json")
    assert result.exit_code == 0, result.stderr
    # Without a terminal, the first line appears before compilation, more lines during it.
    step = "compiling the train step of phase 0 for v5e:2x2"
    first, *_, last = (line for line in result.stderr.splitlines() if line.startswith(step))
    assert first == f"{step} …"
    assert re.fullmatch(rf"{step}: [\d.]+ s", last)
    (found,) = json.loads(result.stdout)
    return found


def test_the_plan_accepts_every_spelling_of_a_slice(planned: dict[str, Any]) -> None:
    assert (planned["topology"], planned["accelerator_type"]) == ("v5e:2x2", "v5litepod-4")
    assert (planned["chips"], planned["devices"], planned["hosts"]) == (4, 4, 1)
    assert planned["fits"]
    assert planned["learning_rate"] == ["peak 0.0001: linear decay 1,000"]


def test_the_plan_names_the_installed_compiler(workplace: Path, planned: dict[str, Any]) -> None:
    own = {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}
    assert planned["versions"]["compiled"] == own
    shown = run_plan(workplace, "--topology", "v5litepod-4").stdout
    assert f"Compiled with jax {own['jax']} and libtpu {own['libtpu']}" in shown


def test_memory_equals_the_compilers_and_the_states(planned: dict[str, Any]) -> None:
    memory = planned["phases"][0]["train"]["compiled"]["memory"]
    width, inner = HIDDEN, INTERMEDIATE
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    embeddings = (1024 + LENGTH + 2) * width + 2 * width  # vocabulary padded to a multiple of 128
    heads = (width * width + width) + (width * width + 3 * width + 1024) + (2 * width + 2)
    parameters = 4 * (LAYERS * layer + embeddings + heads)
    # Each chip has a quarter of the divisible parameters and moments, and all other arrays.
    assert parameters / 4 < memory["parameters"] < parameters / 3
    assert 2 * memory["parameters"] <= memory["optimizer"] < 2 * memory["parameters"] + 2**10
    held = memory["parameters"] + memory["optimizer"] + memory["batch"]
    assert held + memory["temporaries"] == memory["peak"]
    assert 2**20 < memory["temporaries"] < 2**23
    assert planned["compiled"]["peak_hbm_bytes_per_chip"] == memory["peak"]


def test_useful_flops_equal_a_count_by_hand(planned: dict[str, Any]) -> None:
    width, inner = HIDDEN, INTERMEDIATE
    layer = LENGTH * (8 * width * width + 4 * width * inner) + 4 * LENGTH * LENGTH * width
    # Heads read only masked tokens and [CLS] of the last layer, but its attention needs the keys
    # and values of all tokens.
    read = PREDICTIONS + 1
    last = read * (4 * width * width + 4 * width * inner) + 4 * read * LENGTH * width
    last += LENGTH * 4 * width * width
    mlm = PREDICTIONS * (2 * width * width + 2 * width * VOCABULARY)
    forward = (LAYERS - 1) * layer + last + mlm + 2 * width * width + 4 * width
    phase = planned["phases"][0]
    assert phase["train"]["useful_flops"] == 3 * forward * ROWS
    assert phase["evaluation"]["useful_flops"] == pytest.approx(forward * ROWS)


def test_time_is_cycles_plus_exposed_collectives(planned: dict[str, Any]) -> None:
    step = planned["phases"][0]["train"]
    cycles, estimated = step["compiled"]["cycles"], step["estimated"]
    exposed = sum(one["exposed_seconds"] for one in step["collectives"])
    assert cycles["unknown_loops"] == []
    assert cycles["total"] == sum(cycles["by_kind"].values()) > 100_000
    assert estimated["seconds"] == pytest.approx(cycles["total"] / 1.5e9 + exposed)
    assert estimated["mfu"] == pytest.approx(
        step["useful_flops"] / estimated["seconds"] / (4 * 197e12)
    )
    evaluation = planned["phases"][0]["evaluation"]["estimated"]["seconds"]
    hours = (1000 * estimated["seconds"] + 10 * evaluation) / 3600  # one batch each
    assert planned["estimated"]["hours"] == pytest.approx(hours)
    assert planned["estimated"]["dollars_on_demand"] == pytest.approx(hours * 4 * 1.2)


def test_v6e_is_judged_by_schedules(workplace: Path) -> None:
    arguments = ("--topology", "v6e:2x2", "train.evaluation=null")
    shown = run_plan(workplace, *arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    (found,) = json.loads(shown.stdout)
    step = found["phases"][0]["train"]
    cycles, work = (step["compiled"][each] for each in ("cycles", "work"))
    exposed = sum(one["exposed_seconds"] for one in step["collectives"])
    assert step["estimated"]["seconds"] == pytest.approx(cycles["total"] / 1.75e9 + exposed)
    by_kind, estimate = cycles["by_kind"], cycles["other_reading"]
    assert by_kind["custom kernels"] == estimate["custom kernels"]
    for kind, times in {"matrix products": 1, "elementwise": 2, "reductions": 2}.items():
        assert times * by_kind[kind] < estimate[kind], kind
    assert by_kind["matrix products"] > work["product_flops"] / (918e12 / 1.75e9)
    details = run_plan(workplace, *arguments, "--details").stdout
    assert "compiler's estimate" in details
    assert f"{sum(estimate.values()) / 1e6:,.1f}" in details


def test_kernels_count_by_their_schedule(planned: dict[str, Any]) -> None:
    cycles = planned["phases"][0]["train"]["compiled"]["cycles"]
    assert cycles["uncounted"] == {}
    kernels = cycles["kernels"]
    # LayerNorm and GELU use no kernel, because 64 columns do not fill a register. The last layer
    # has a separate kernel for fewer queries.
    names = [one["name"] for one in kernels for _ in range(one["calls"])]
    both = ("attention_forward", "attention_backward")
    assert sorted(names) == sorted(
        both * LAYERS + ("cross_entropy_forward", "cross_entropy_backward")
    )
    inside = sum(one["cycles"] * one["calls"] for one in kernels)
    assert cycles["by_kind"]["custom kernels"] == cycles["in_kernels"] == inside
    work = planned["phases"][0]["train"]["compiled"]["work"]
    # A row has 2 heads in 128 columns, and 64 tokens padded to 128. Attention needs 2 products
    # forward and 5 backward. The last layer has 11 queries, padded to 16.
    queries = (LAYERS - 1) * 128 + 16
    attention = ROWS / 4 * (2 + 5) * 2 * queries * 128 * HIDDEN
    # The loss needs one product forward and two backward. A chip has 200 predictions, padded to
    # 208, and 1,024 pieces.
    loss = (1 + 2) * 2 * 208 * 1024 * HIDDEN
    assert work["kernel_flops"] == attention + loss
    assert work["hbm_bytes"] > 0
    for one in kernels:
        assert one["cycles"] >= one["bundles"] > one["busiest_bundles"] > 0


def test_gradients_are_scattered_and_parameters_gathered(
    planned: dict[str, Any],
) -> None:
    collectives = planned["phases"][0]["train"]["collectives"]
    assert {one["link"] for one in collectives} == {"ICI"}
    assert {tuple(one["axes"]) for one in collectives} == {("data",)}
    gathered = sum(one["bytes"] for one in collectives if one["kind"] == "all-gather")
    parameters = 4 * planned["phases"][0]["train"]["compiled"]["memory"]["parameters"]
    # Gradients and matrices are bfloat16. Small parameters are replicated.
    scattered = sum(one["bytes"] for one in collectives if one["kind"] == "reduce-scatter")
    for found in (gathered, scattered):
        assert 0.4 * parameters < found <= 0.6 * parameters


def test_a_second_plan_reuses_programs_and_takes_prices(
    workplace: Path, planned: dict[str, Any]
) -> None:
    prices = workplace / "prices.yaml"
    prices.write_text(
        'date: "2026-01-31"\nsource: our contract\nchip_hour:\n  v5e: {on_demand: 0.5}\n',
        encoding="utf-8",
    )
    arguments = ("--topology", "v5e:2x2", "--prices", str(prices))
    again = run_plan(workplace, *arguments, "--json")
    assert again.exit_code == 0, again.stderr
    assert "compiling" not in again.stderr
    (found,) = json.loads(again.stdout)
    assert found["phases"] == planned["phases"]
    assert found["estimated"]["dollars_spot"] is None
    dollars = found["estimated"]["dollars_on_demand"]
    assert dollars == pytest.approx(found["estimated"]["chip_hours"] * 0.5)
    page = workplace / "plan.html"
    shown = run_plan(workplace, *arguments, "--details", "--html", str(page))
    assert shown.exit_code == 0, shown.stderr
    html = page.read_text(encoding="utf-8")
    Document(html)
    for expected in ("HBM of a chip, GiB: v5e:2x2, phase 0", "cycles by kind", "our contract"):
        assert expected in html
    kernel = "attention_backward"
    collectives = ("all-gather", "ICI", "ms exposed")
    expected_lines = ("v5e:2x2", "matrix products", kernel, *collectives)
    for expected in (*expected_lines, "by schedule", "2026-01-31"):
        assert expected in shown.stdout
    short = run_plan(workplace, *arguments)
    assert short.stdout.startswith("Fits (")
    for detail in ("all-gather", "cycles by kind"):
        assert detail not in short.stdout


def test_the_quick_form_estimates_the_same_program(
    workplace: Path, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHALLOW", LAYERS - 1)
    result = run_plan(workplace, "--topology", "v5e:2x2", "--json", "--fresh")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert "--exact" in found["notes"][0]
    estimated, exact = (each["phases"][0]["train"] for each in (found, planned))
    assert (estimated["quick"], exact["quick"]) == (True, False)
    memory, known = (each["compiled"]["memory"] for each in (estimated, exact))
    assert memory == known
    moved = [
        sorted((one["kind"], one["trips"], one["bytes"]) for one in each["collectives"])
        for each in (estimated, exact)
    ]
    assert moved[0] == moved[1]
    works = [each["compiled"]["work"] for each in (estimated, exact)]
    for kind in ("product_flops", "kernel_flops"):
        assert works[0][kind] == works[1][kind] > 0
    cycles, counted = (each["compiled"]["cycles"] for each in (estimated, exact))
    # The operations are so small that almost all cycles are their constant start.
    scheduled, known_cycles = (
        each["total"] - each["by_bytes"] - each["in_kernels"] for each in (cycles, counted)
    )
    assert known_cycles / 2 < scheduled < 2 * known_cycles
    bundles = [
        sorted((one["name"], one["bundles"]) for one in each["kernels"])
        for each in (cycles, counted)
    ]
    for (name, found), (known_name, known_bundles) in zip(*bundles, strict=True):
        assert name == known_name
        assert found == pytest.approx(known_bundles, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "key", "values"),
    [
        (("v5e:4x5",), "topology.size", {"found": "v5e:4x5", "nearest": "v5e:4x4"}),
        (
            ("v5e:4x4", "--slices", "2"),
            "batch.not_a_multiple",
            {"place": "v5e:4x4: train.phases.0.batch_size", "found": 80, "unit": 32},
        ),
        (("v5e:2x2", "--prices", "none.yaml"), "file.missing", {"place": "none.yaml"}),
    ],
    ids=["topology", "batch", "prices"],
)
def test_a_mistake_is_one_line(
    workplace: Path, arguments: tuple[str, ...], key: str, values: dict[str, Any]
) -> None:
    """If the slices do not divide the batch, compilation fails."""
    config = workplace / "run.yaml"
    line = refused("plan", config, "--vocab-size", VOCABULARY, "--topology", *arguments)
    assert line.key == key
    says(line, **values)


@pytest.mark.chaos  # four more programs to compile
def test_fitting_settings_are_compiled_and_printed(
    workplace: Path, planned: dict[str, Any]
) -> None:
    result = run_plan(workplace, "--topology", "v5e:2x2", "--suggest", "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    suggestions = found["suggestions"]
    assert len(suggestions) == 5
    rates = [one["rows_per_second"] for one in suggestions]
    assert rates == sorted(rates, reverse=True)
    larger = f"train.phases.0.batch_size={2 * ROWS}"
    assert larger in {override for one in suggestions for override in one["overrides"]}
    (unchanged,) = [one for one in suggestions if not one["overrides"]]
    assert unchanged["seconds"] == planned["phases"][0]["train"]["estimated"]["seconds"]
    best = suggestions[0]["overrides"]
    again = run_plan(workplace, "--topology", "v5e:2x2", "--json", *best)
    assert again.exit_code == 0, again.stderr
    (planned_again,) = json.loads(again.stdout)
    train = planned_again["phases"][0]["train"]
    assert train["estimated"]["seconds"] == suggestions[0]["seconds"]


SMALLER = "model.architecture.num_hidden_layers=1"


def test_a_run_that_does_not_fit_reports_its_need(workplace: Path) -> None:
    arguments = ("train.evaluation=null", "train.phases.0.batch_size=4000000", SMALLER)
    result = run_plan(workplace, "--topology", "v5e:2x2", "--json", "--no-suggest", *arguments)
    assert result.exit_code == 1, result.stderr
    (found,) = json.loads(result.stdout)
    step = found["phases"][0]["train"]
    assert not found["fits"]
    assert step["needed_bytes"] > step["available_bytes"] > 15 * 2**30
    assert found["estimated"]["hours"] is None
