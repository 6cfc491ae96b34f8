"""Progress and warnings of a run on the console."""

import contextlib
import time
from collections.abc import Mapping
from datetime import timedelta

import jax
from rich.console import Console
from rich.text import Text

from bert_jax.narration import Narrator
from bert_jax.train.metrics import Throughput


class ProgressDisplay:
    """Shows steps, scores, speed and remaining time: live, or as one line per report."""

    def __init__(self, narrator: Narrator, *, first_step: int, total_steps: int) -> None:
        """Starts the clock; `first_step` is the step at which this process starts or resumes."""
        self._narrator = narrator
        self._first = self._step = first_step
        self._total = total_steps
        self._started = time.monotonic()
        self._timed_from: tuple[int, float] | None = None  # a step and when it was done
        self._reported = ""
        self._live = contextlib.ExitStack()
        self._live.enter_context(narrator.stage(self._now, lasting=True))

    def step_done(self, step: int) -> None:
        """Counts a step; the first step of this process gets its own line."""
        self._step = step
        if step == self._first + 1:
            now = time.monotonic()
            self._timed_from = step, now  # without the compilation of the first step
            seconds = now - self._started
            self.say(f"step {step:,} of {self._total:,}: done after {seconds:.1f} s", style="dim")

    def report(self, step: int, scores: Mapping[str, float], throughput: Throughput) -> None:
        """Shows the state of the run after `step` steps.

        The most important metrics are in the first 80 columns.
        """
        self._step = step
        others = {name: value for name, value in scores.items() if name != "loss"}
        parts = [
            format_scores({"loss": scores["loss"]}) if "loss" in scores else "",
            f"tokens/s {throughput.tokens_per_second:,.0f}",
            self._eta(),
            format_scores(others),
            f"input {throughput.input_share:.0%}",
            "" if throughput.mfu is None else f"mfu {throughput.mfu:.1%}",
        ]
        self._reported = " ".join(filter(None, parts))
        if not self._narrator.is_live:
            self.say(self._line(self._reported))

    def evaluated(self, step: int, scores: Mapping[str, float], remark: str = "") -> None:
        """Shows an evaluation's scores and a remark in a permanent line."""
        remark = f" ({remark})" if remark else ""
        self.say(f"step {step} validation: {format_scores(scores)}{remark}", style="cyan")

    def say(self, message: str, *, style: str = "") -> None:
        """Shows a permanent line."""
        self._narrator.say(message, style=style)

    def close(self) -> None:
        """Stops refreshing; the last line remains."""
        self._live.close()
        if self._reported and self._narrator.is_live:
            self.say(self._now())
        self._reported = ""

    def _now(self) -> str:
        """Returns the current step, and on a live line the last report."""
        # In a log, the scores of the last report would look like scores of this step.
        reported = self._reported if self._narrator.is_live else ""
        return self._line(reported or self._eta())

    def _line(self, rest: str) -> str:
        return f"step {self._step}/{self._total} {rest}".rstrip()

    def _eta(self) -> str:
        """Returns the remaining time, from the speed after the first step of this process."""
        step, since = self._timed_from or (self._step, 0)
        if self._step == step:
            return ""
        seconds = (time.monotonic() - since) / (self._step - step) * (self._total - self._step)
        return f"eta {timedelta(seconds=round(seconds))}"


def format_scores(scores: Mapping[str, float]) -> str:
    """Returns scores as text, such as ``loss 6.912 mlm_accuracy 12.1%``."""
    return " ".join(f"{name} {_format(name, value)}" for name, value in scores.items())


def _format(name: str, value: float) -> str:
    if name.endswith("accuracy"):
        return f"{value:.1%}"
    return f"{value:.2e}" if name == "learning_rate" else f"{value:.3f}"


def warn_aloud(line: str) -> None:
    """Prints a warning in red on standard error; only the first process of a job prints."""
    if jax.process_index() == 0:
        line = f"bert-jax: WARNING: {line}"
        Console(stderr=True).print(Text(line), style="bold red", soft_wrap=True)
