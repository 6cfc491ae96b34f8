"""`bert-jax plan` prints a verdict and one small table first."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.planning.plans import VOCABULARY, FakeCompiler, values
from tests.project import invoke, refused, says
from tests.report.strict_html import Document

pytestmark = pytest.mark.slow

TABLES = ("HBM per chip, GiB", "Work of a step", "Collectives of a step", "cycles by kind")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of two phases."""
    settings = values()
    (phase,) = settings["train"]["phases"]
    settings["train"]["phases"] = [phase | {"steps": 2 * 10**10}, phase]
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")  # YAML would have aliases
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """A compiler whose steps need 8 of 16 GiB. With twice the batch, they need 19.3 GiB."""
    return FakeCompiler().install(monkeypatch)


def plan(config: Path, *arguments: object) -> Any:
    return invoke("plan", config, "--vocab-size", VOCABULARY, "--topology", "v5e:2x2", *arguments)


def test_output_is_a_verdict_and_one_table(config: Path, fake: FakeCompiler) -> None:
    page = config.parent / "plan.html"
    shown = plan(config, "--html", page)
    assert shown.exit_code == 0, shown.stderr
    (found,) = json.loads(plan(config, "--json").stdout)
    hours, costs = found["estimated"]["hours"], found["estimated"]
    dollars = [f"${costs[f'dollars_{kind}']:,.0f}" for kind in ("on_demand", "spot")]
    first, *rest = shown.stdout.splitlines()
    expected = f"About {hours:,.1f} hours, {dollars[0]} on demand, {dollars[1]} spot."
    assert first == found["verdict"] == f"Fits (50% of HBM). {expected}"
    assert max(map(len, [first, *rest[:6]])) <= 80
    rows = [line.split() for line in rest]
    (headings,) = (row for row in rows if "topology" in row)
    assert headings[-5:] == ["memory", "ms/step", "MFU", "hours", "dollars"]
    assert [row[:5] for row in rows if "50%" in row] == [
        ["v5e:2x2", "0", "20,000,000,000", "64", "80"],
        ["1", "1,000", "64", "80", "50%"],
    ]
    assert not any(table in shown.stdout for table in TABLES)
    # The tiles of the HTML page.
    html = page.read_text(encoding="utf-8")
    Document(html)
    tiles = html[: html.index("<main>")]
    for value in ("50%", f"{hours:,.1f} hours", *dollars, first):
        assert value in tiles


def test_details_show_the_other_tables(config: Path, fake: FakeCompiler) -> None:
    details = plan(config, "--details").stdout
    assert all(table in details for table in (*TABLES[:2], TABLES[3]))
    assert details.startswith("Fits (50% of HBM)")


def test_a_run_that_does_not_fit_gets_suggestions(config: Path, fake: FakeCompiler) -> None:
    larger = "train.phases.1.batch_size=160"
    without = plan(config, larger, "--no-suggest")
    assert without.exit_code == 1
    (line, *_) = without.stdout.splitlines()
    assert line.startswith("Does not fit: the train step of phase 1 needs 19.3 GiB of 16.0 GiB")
    assert "accumulation" in line
    shown = plan(config, larger)
    assert shown.exit_code == 1
    assert "does not fit: the train step of phase 1 needs 19.3 GiB" in shown.stderr  # early
    (line, *_) = shown.stdout.splitlines()
    assert "It fits with train.phases.1.accumulation=2 (8.0 GiB" in line
    assert "Settings that fit" not in shown.stdout
    mended = plan(config, larger, "train.phases.1.accumulation=2")
    assert mended.exit_code == 0
    assert "Settings that fit" in plan(config, larger, "--suggest").stdout


def test_every_topology_has_a_verdict(config: Path, fake: FakeCompiler) -> None:
    shown = plan(config, "--topology", "v5e:2x4")
    first, second, *_ = shown.stdout.splitlines()
    assert first.startswith("v5e:2x2: Fits (50% of HBM)")
    assert second.startswith("v5e:2x4: Fits (50% of HBM)")


def test_without_libtpu_one_line_names_the_package(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arguments = ("--vocab-size", VOCABULARY, "--topology", "v5e:2x2")
    line = refused("plan", config, *arguments)
    says(line, key="install.missing", place="libtpu")
    assert "[plan]" in line
