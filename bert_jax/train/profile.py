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

# TensorBoard's plugin reads it within the directory of `tensorboard --logdir`.
FOLDER: Final = "tensorboard/plugins/profile"
_SUFFIX: Final = ".xplane.pb"


class StepProfile:
    """Traces the steps of the settings once, on every process; a context manager.

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
        """Returns the context to dispatch a step in, counted from 1 over the whole run."""
        if self._section is not None and number == self._section.start:
            self._begin(self._section)
        if self._aside is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    def step_done(self, number: int) -> None:
        """Ends the trace after the metrics of its last step have been read."""
        if self._section is not None and number >= self._section.last:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()  # a run that stopped in the middle of the trace keeps its part

    def _begin(self, section: ProfileSection) -> None:
        aside = scratch_directory()
        options = jax.profiler.ProfileOptions()
        # Every Python call would make a step's trace many times as large.
        options.python_tracer_level = 0
        options.session_id = f"steps_{section.start}-{section.last}"
        try:
            jax.profiler.start_trace(str(aside), profiler_options=options)
        except RuntimeError as error:  # the calling program traces already
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
            for path in aside.rglob(f"*{_SUFFIX}"):
                name = path.name
                if jax.process_count() > 1:  # several may run on one machine
                    name = f"{name.removesuffix(_SUFFIX)}-{jax.process_index()}{_SUFFIX}"
                target = self._target / path.parent.name / name
                write_whole(target, path.read_bytes())
                if jax.process_index() == 0:
                    self._say(f"profile written: {target}; tensorboard --logdir shows it")
        except (UserError, OSError, RuntimeError) as error:  # a trace is not worth a run
            self._say(f"train.profile: the trace is lost ({first_line(error)})")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
