"""`train.profile`: traces that TensorBoard opens, with the steps that were asked for."""

import io
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

from bert_jax.config import parse_config
from bert_jax.verbs.pretrain import pretrain
from tests.project import one_phase


def run(project: Path, run_dir: Path, **train: Any) -> str:
    """Six steps; returns what was said."""
    values = one_phase(project, steps=6, evaluation=None, **train) | {"run_dir": str(run_dir)}
    said = io.StringIO()
    pretrain(parse_config(values, source="test"), console=Console(file=said, width=300))
    return said.getvalue()


def traced_steps(path: Path) -> set[int]:
    """The steps that a trace's annotations name."""
    data = jax.profiler.ProfileData.from_file(str(path))
    events = [event for plane in data.planes for line in plane.lines for event in line.events]
    stats = [dict(event.stats) for event in events if event.name == "train"]
    return {int(found["step_num"]) for found in stats if "step_num" in found}


# jaxlib's binding of a trace, on Python 3.13; as an error it would end the process.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
@pytest.mark.slow
def test_the_steps_named_are_traced_and_no_others(project: Path, tmp_path: Path) -> None:
    said = run(project, tmp_path / "run", profile={"start": 3, "steps": 2})
    folder = tmp_path / "run" / "tensorboard" / "plugins" / "profile" / "steps_3-4"
    (path,) = folder.iterdir()
    assert path.name.endswith(".xplane.pb")
    assert f"profile written: {path}" in said
    assert traced_steps(path) == {3, 4}
    # A run that ends in the middle leaves what there is.
    run(project, tmp_path / "short", profile={"start": 6, "steps": 5})
    (path,) = (tmp_path / "short" / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    assert traced_steps(path) == {6}


@pytest.mark.slow
def test_a_trace_that_is_running_already_costs_no_run(project: Path, tmp_path: Path) -> None:
    little = jax.profiler.ProfileOptions()
    little.python_tracer_level = little.host_tracer_level = 0
    with jax.profiler.trace(str(tmp_path / "own"), profiler_options=little):
        said = run(project, tmp_path / "run", profile={"start": 2, "steps": 1})
    assert "train.profile: no trace (Profile has already been started" in said
    assert not (tmp_path / "run" / "tensorboard" / "plugins").exists()
