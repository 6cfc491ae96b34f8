"""`train.profile`: traces of the requested steps for TensorBoard."""

from pathlib import Path

import jax
import pytest
from etils import epath

from bert_jax.train.profile import StepProfile
from bert_jax.train.sections import ProfileSection
from tests.project import ok, one_phase, write_config


def traced_steps(path: Path) -> set[int]:
    """Returns the steps in the annotations of a trace."""
    data = jax.profiler.ProfileData.from_file(str(path))
    events = [event for plane in data.planes for line in plane.lines for event in line.events]
    stats = [dict(event.stats) for event in events if event.name == "train"]
    return {int(found["step_num"]) for found in stats if "step_num" in found}


# On Python 3.13 jaxlib's trace binding emits a warning, which as an error would end the process.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
def test_only_the_named_steps_are_traced(project: Path, tmp_path: Path) -> None:
    profile = {"start": 3, "steps": 2}
    config = one_phase(project, steps=6, evaluation=None, profile=profile)
    run = tmp_path / "run"
    said = ok("pretrain", write_config(tmp_path / "run.yaml", config), f"run_dir={run}")
    (path,) = (run / "tensorboard" / "plugins" / "profile" / "steps_3-4").iterdir()
    assert path.name.endswith(".xplane.pb")
    assert f"profile written: {path}" in said
    assert traced_steps(path) == {3, 4}


def test_an_early_end_keeps_its_part_of_the_trace(tmp_path: Path) -> None:
    section = ProfileSection(start=6, steps=5)
    with StepProfile(section, epath.Path(tmp_path), say=print) as profile:
        for step in (5, 6):
            with profile.step(step):
                pass
            profile.step_done(step)
    (path,) = tmp_path.glob("tensorboard/plugins/profile/*/*.xplane.pb")
    assert traced_steps(path) == {6}


def test_another_running_trace_does_not_stop_the_run(tmp_path: Path) -> None:
    said: list[str] = []
    little = jax.profiler.ProfileOptions()
    little.python_tracer_level = little.host_tracer_level = 0
    with (
        jax.profiler.trace(str(tmp_path / "own"), profiler_options=little),
        StepProfile(ProfileSection(start=1), epath.Path(tmp_path), say=said.append) as profile,
        profile.step(1),
    ):
        pass
    (line,) = said
    assert "train.profile: no trace (Profile has already been started" in line
    assert not (tmp_path / "tensorboard").exists()
