"""The log of MLPerf Training's BERT benchmark, in the format of the package mlperf-logging.

MLPerf's compliance checker reads it:
``python -m mlperf_logging.compliance_checker --ruleset 5.0.0 mlperf.log``.
"""

import importlib.util
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.errors import not_installed
from bert_jax.files.line_log import LineLog
from bert_jax.files.read import read_bytes
from bert_jax.train.spec import Milestones

MLPERF_LOG: Final = "mlperf.log"  # file in the run directory
ACCURACY: Final = "mlm_accuracy"  # score that the benchmark calls masked LM accuracy
_PREFIX: Final = b":::MLLOG "


class MlperfLog(Milestones):
    """Writes the milestones of a run with one phase, with their times.

    An epoch of the log is one training sample, as the rules require for BERT. A resumed run
    continues the log: its clock ran on while the run was stopped. A run that was stopped before
    its clock started begins a new log.
    """

    def __init__(
        self,
        run_dir: epath.Path,
        *,
        facts: Mapping[str, Any],
        batch_size: int,
        caches_cleared: bool,
        started: float,
        say: Callable[[str], None],
    ) -> None:
        """Opens the log, and writes the start of the initialisation.

        Args:
            run_dir: run directory.
            facts: values by the keys of the log, such as ``{"seed": 1, "opt_lamb_beta_1": 0.9}``.
            batch_size: training samples per step.
            caches_cleared: whether file caches were empty when the run started.
            started: Unix time at which the initialisation began.
            say: prints a warning if the log cannot be written.
        """
        from mlperf_logging.mllog import constants
        from mlperf_logging.mllog.mllog import MLLogger

        self._keys, self._batch_size = constants, batch_size
        self._block: int | None = None  # step after which the open block began
        path = run_dir / MLPERF_LOG
        content = read_bytes(path) if path.exists() else b""
        content = content[: content.rfind(b"\n") + 1]  # the last line may be cut short
        lines = [line for line in content.splitlines() if line.startswith(_PREFIX)]
        found = {json.loads(line.removeprefix(_PREFIX))["key"] for line in lines}
        self._clock = constants.RUN_START in found  # whether the clock has started
        self._done = constants.RUN_STOP in found  # whether the clock has stopped
        self._lines = LineLog(path, content=content if self._clock else b"", say=say)
        logger = logging.Logger("mlperf", logging.INFO)
        logger.addHandler(_Handler(self._lines))
        sources = re.escape(str(Path(__file__).parents[2]))  # a pattern
        self._log = MLLogger(logger, root_dir=sources)
        if not self._clock:
            self._log.event(constants.CACHE_CLEAR, caches_cleared)
            self._log.start(constants.INIT_START, time_ms=round(started * 1000))
            for key, value in facts.items():
                self._log.event(key, value)

    def started(self) -> None:
        """Ends the initialisation and starts the clock, if it does not run."""
        if not self._clock:
            self._log.end(self._keys.INIT_STOP)
            self._log.start(self._keys.RUN_START)
            self._clock = True

    def training(self, step: int, *, until: int) -> None:
        """Begins a block of steps, unless a block is open."""
        if self._done or self._block is not None or until <= step:
            return
        self._block = step
        self._log.start(
            self._keys.BLOCK_START,
            metadata={
                "first_epoch_num": self._samples(step) + 1,
                "epoch_count": self._samples(until - step),
            },
        )

    def evaluating(self, step: int) -> None:
        """Ends the open block, and begins an evaluation."""
        if self._done:
            return
        self._end_block()
        self._log.start(self._keys.EVAL_START, metadata={"epoch_num": self._samples(step)})

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes the accuracy, and ends the evaluation."""
        if self._done:
            return
        epoch = {"epoch_num": self._samples(step)}
        self._log.event(self._keys.EVAL_ACCURACY, scores[ACCURACY], metadata=epoch)
        self._log.end(self._keys.EVAL_STOP, metadata=epoch)

    def ended(self, step: int, *, target_reached: bool) -> None:
        """Stops the clock: `success` if a score met the target, otherwise `aborted`."""
        if self._done:
            return
        self._end_block()
        status = self._keys.SUCCESS if target_reached else self._keys.ABORTED
        # MLPerf's checker of reference convergence points reads the samples before the end.
        self._log.event(self._keys.TRAIN_SAMPLES, self._samples(step))
        self._log.end(self._keys.RUN_STOP, metadata={"status": status})
        self._done = True

    def flush(self) -> None:
        """See `Milestones`. Raises the errors of `LineLog.flush`."""
        self._lines.flush()

    def close(self) -> None:
        """See `Milestones`."""
        self._lines.close()

    def _end_block(self) -> None:
        if self._block is not None:
            first = self._samples(self._block) + 1
            self._log.end(self._keys.BLOCK_STOP, metadata={"first_epoch_num": first})
            self._block = None

    def _samples(self, steps: int) -> int:
        return steps * self._batch_size


class _Handler(logging.Handler):
    """Appends records to a file that may be in a bucket."""

    def __init__(self, lines: LineLog) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append_raw(record.getMessage().encode() + b"\n")


def require_mlperf_logging(*, key: str) -> None:
    """Raises UserError if the package mlperf-logging is missing; `key` is the setting's key."""
    if importlib.util.find_spec("mlperf_logging") is None:
        raise not_installed("mlperf-logging", key, extra="mlperf")
