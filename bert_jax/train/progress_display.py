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
        self._reported = ""
        self._live = contextlib.ExitStack()
        self._live.enter_context(narrator.stage(self._now, lasting=True))

    def step_done(self, step: int) -> None:
        """Counts a step; the first step of this process gets its own line."""
        self._step = step
        if step == self._first + 1:
            seconds = time.monotonic() - self._started
            self.say(f"step {step:,} of {self._total:,}: done after {seconds:.1f} s", style="dim")

    def report(self, step: int, scores: Mapping[str, float], throughput: Throughput) -> None:
        """Shows the state of the run after `step` steps.

        The most important metrics are in the first 80 columns.
        """
        self._step = step
        seconds = (time.monotonic() - self._started) / max(step - self._first, 1)
        others = {name: value for name, value in scores.items() if name != "loss"}
        parts = [
            format_scores({"loss": scores["loss"]}) if "loss" in scores else "",
            f"tokens/s {throughput.tokens_per_second:,.0f}",
            f"eta {timedelta(seconds=round(seconds * (self._total - step)))}",
            format_scores(others),
            f"input {throughput.input_share:.0%}",
            "" if throughput.mfu is None else f"mfu {throughput.mfu:.1%}",
        ]
        self._reported = " ".join(filter(None, parts))
        if not self._narrator.is_live:
            self.say(self._now())

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
        """Returns the last report with the current step."""
        return f"step {self._step}/{self._total} {self._reported}".rstrip()


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
