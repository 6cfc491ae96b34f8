"""`doctor`, `pretrain` and `plan` say how often a run reads its data."""

import re
from pathlib import Path

import pytest

from bert_jax.config import parse_config
from bert_jax.data.dataset.provenance import read_provenance
from bert_jax.verbs.plan import plan
from bert_jax.workflows.epochs import MOST, count_epochs, describe_epochs
from tests.planning.plans import FakeCompiler, values
from tests.project import ok, one_phase, project_config, write_config

EPOCHS = r"phase 0: ([\d.,]+) epochs of ([\d,]+) rows?: ([\d.,]+) passes over the text"


def rows_of(project: Path) -> int:
    return read_provenance(project / "dataset32").splits["train"].examples


def test_doctor_and_pretrain_say_the_epochs(project: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", one_phase(project, steps=12))
    checked = re.search(f"ok +epochs: {EPOCHS}", ok("doctor", config))
    trained = re.search(EPOCHS, ok("pretrain", config, f"run_dir={tmp_path / 'run'}"))
    assert checked is not None
    assert trained is not None
    assert trained.groups() == checked.groups()
    rows = rows_of(project)
    assert int(checked[2].replace(",", "")) == rows
    assert float(checked[1]) == pytest.approx(12 * 8 / rows, rel=0.01)


def test_more_epochs_than_berts_are_a_warning(project: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.yaml", one_phase(project, steps=100_000_000))
    found = re.search(f"warn +epochs: {EPOCHS}, more than {MOST}", ok("doctor", config))
    assert found is not None
    assert float(found[1].replace(",", "")) == pytest.approx(8e8 / rows_of(project), rel=0.01)


def test_passes_over_one_text_are_summed_over_phases_ramps_and_copies(project: Path) -> None:
    values = project_config(project)
    one, other = values["train"]["phases"]
    one |= {"batch_ramp": [{"steps": 4, "batch_size": 2}], "batch_size": 8, "steps": 10}
    other["packing"] = {"max_examples": 4}
    found = list(count_epochs(parse_config(values, source="test").train))
    rows = rows_of(project)
    assert found[0].epochs == pytest.approx((4 * 2 + 6 * 8) / rows)
    assert found[1].rows < read_provenance(project / "dataset48").splits["train"].examples
    assert found[0].text == found[1].text  # one text in two lengths
    copied = [each._replace(epochs=15.0, copies=2.0, fewest=2.0) for each in found]
    line, repeats = describe_epochs(copied)
    assert repeats
    assert "60 passes over the text" in line
    assert f"of {found[0].rows:,} rows" in line
    assert f"of {found[1].rows:,} packed rows" in line
    elsewhere = [copied[0], copied[1]._replace(text="another")]
    assert not describe_epochs(elsewhere)[1]


def test_a_plan_says_the_epochs_of_data_on_this_machine(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeCompiler().install(monkeypatch)
    run = values()
    (found,) = plan(run, ["v5e:2x2"], vocab_size=1000)
    assert not any("epochs" in note for note in found.notes)
    run["train"]["phases"][0]["dataset"] = str(project / "dataset32")
    (found,) = plan(run, ["v5e:2x2"], vocab_size=1000)
    assert any(re.search(EPOCHS, note) for note in found.notes)
