"""A trace of a few steps, for TensorBoard's profile page (XProf)."""

import contextlib
import pathlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Self

import jax
from etils import epath

from bert_jax.errors import UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.files.scratch import scratch_directory
from bert_jax.train.sections import ProfileSection

# Where TensorBoard's plugin looks, within what `tensorboard --logdir` is given.
FOLDER: Final = "tensorboard/plugins/profile"
_TRACES: Final = "*.xplane.pb"


class StepProfile:
    """Traces the steps that the settings name, once, on every process; a context manager.

    The trace begins before the first of them is dispatched and ends when the last is done. It is
    written aside and copied into the run: ``tensorboard/plugins/profile/steps_11-13/*.xplane.pb``.
    """

    def __init__(
        self, section: ProfileSection | None, run_dir: epath.Path, *, say: Callable[[str], None]
    ) -> None:
        """Traces nothing yet; `say` gets a line when the trace is written, or why it is not."""
        self._section, self._target, self._say = section, run_dir / FOLDER, say
        self._aside: pathlib.Path | None = None  # while it traces

    def step(self, number: int) -> AbstractContextManager[object]:
        """Returns what a step, counted from 1 over the whole run, is to be dispatched under."""
        if self._section is None:
            return contextlib.nullcontext()
        if number == self._section.start:
            self._begin(self._section)
        if self._aside is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def step_done(self, number: int) -> None:
        """Says that a step's figures have been read."""
        if self._section is not None and number >= self._section.last:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()  # the run stopped in the middle: what there is

    def _begin(self, section: ProfileSection) -> None:
        aside = scratch_directory()
        options = jax.profiler.ProfileOptions()
        # Every Python call would make a step's trace many times as large.
        options.python_tracer_level = 0
        options.session_id = f"steps_{section.start}-{section.last}"
        try:
            jax.profiler.start_trace(str(aside), profiler_options=options)
        except RuntimeError as error:  # the program around us traces already
            shutil.rmtree(aside, ignore_errors=True)
            self._say(f"train.profile: no trace ({first_line(error)})")
            return
        self._aside = aside

    def _end(self) -> None:
        if self._aside is None:
            return
        aside, self._aside = self._aside, None
        try:
            jax.profiler.stop_trace()
            for path in aside.rglob(_TRACES):
                target = self._target / path.parent.name / _own_name(path.name)
                write_whole(target, path.read_bytes())
                if jax.process_index() == 0:
                    self._say(f"profile written: {target}; tensorboard --logdir shows it")
        except (UserError, OSError, RuntimeError) as error:  # a trace is not worth a run
            self._say(f"train.profile: the trace is lost ({first_line(error)})")
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _own_name(name: str) -> str:
    """Returns a file name that no other process of the run writes, also on one machine."""
    if jax.process_count() == 1:
        return name
    host = name.removesuffix(_TRACES.lstrip("*"))
    return f"{host}-{jax.process_index()}{_TRACES.lstrip('*')}"
