"""Traces a few steps for TensorBoard's profile page (XProf)."""

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

# TensorBoard's plugin reads this folder below the directory of `tensorboard --logdir`.
FOLDER: Final = "tensorboard/plugins/profile"
_SUFFIX: Final = ".xplane.pb"


class StepProfile:
    """Traces the configured steps once, on every process; a context manager.

    The trace begins before the dispatch of the first step and ends after the last step. It is
    written to a scratch directory and then copied into the run:
    ``tensorboard/plugins/profile/steps_11-13/*.xplane.pb``.
    """

    def __init__(
        self, section: ProfileSection | None, run_dir: epath.Path, *, say: Callable[[str], None]
    ) -> None:
        """Traces nothing yet; `say` prints the path of the trace, or why it failed."""
        self._section, self._target, self._say = section, run_dir / FOLDER, say
        self._aside: pathlib.Path | None = None  # scratch directory during the trace

    def step(self, number: int) -> AbstractContextManager[object]:
        """Returns the context for dispatching step `number`, counted from 1 over the run."""
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
        self._end()  # if the run stopped during the trace, write the incomplete trace

    def _begin(self, section: ProfileSection) -> None:
        aside = scratch_directory()
        options = jax.profiler.ProfileOptions()
        # Without Python calls, the trace of a step is much smaller.
        options.python_tracer_level = 0
        options.session_id = f"steps_{section.start}-{section.last}"
        try:
            jax.profiler.start_trace(str(aside), profiler_options=options)
        except RuntimeError as error:  # the calling program is tracing already
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
                if jax.process_count() > 1:  # processes of one machine need different names
                    name = f"{name.removesuffix(_SUFFIX)}-{jax.process_index()}{_SUFFIX}"
                target = self._target / path.parent.name / name
                write_whole(target, path.read_bytes())
                if jax.process_index() == 0:
                    self._say(f"profile written: {target}; open it with tensorboard --logdir")
        except (UserError, OSError, RuntimeError) as error:  # must not end the run
            self._say(f"train.profile: could not write the trace ({first_line(error)})")
        finally:
            shutil.rmtree(aside, ignore_errors=True)
