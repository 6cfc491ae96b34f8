"""What the terminal shows of a run: one line, refreshed in place; plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import jax
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bert_jax.train.throughput import Throughput


class ProgressDisplay:
    """Shows steps, scores, speed and the time left."""

    def __init__(self, console: Console, *, first_step: int, total_steps: int) -> None:
        """Starts the clock.

        Args:
            console: a terminal gets one live line, anything else a plain line per report.
            first_step: steps done before this process started.
            total_steps: of the whole run.
        """
        self._console = console
        self._first = first_step
        self._total = total_steps
        self._started = time.monotonic()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        if self._live:
            self._live.start()

    def report(self, step: int, scores: Mapping[str, float], throughput: Throughput) -> None:
        """Shows the state of the run after `step` steps."""
        self._show(Text(self._line(step, scores, throughput), no_wrap=True, overflow="ellipsis"))

    def evaluated(self, step: int, scores: Mapping[str, float], remark: str = "") -> None:
        """Shows an evaluation and a remark on it, as a line that stays."""
        remark = f" ({remark})" if remark else ""
        self.say(f"step {step} validation: {format_scores(scores)}{remark}", style="cyan")

    def say(self, message: str, *, style: str = "") -> None:
        """Shows a line that stays."""
        self._console.print(Text(message), style=style, soft_wrap=True)

    def close(self) -> None:
        """Stops refreshing; the last line stays."""
        if self._live:
            self._live.stop()

    def _show(self, text: Text) -> None:
        if self._live:
            self._live.update(text, refresh=True)
        else:
            self._console.print(text, soft_wrap=True)

    def _line(self, step: int, scores: Mapping[str, float], throughput: Throughput) -> str:
        done = step - self._first
        left = (time.monotonic() - self._started) / max(done, 1) * (self._total - step)
        mfu = "" if throughput.mfu is None else f" mfu {throughput.mfu:.1%}"
        return (
            f"step {step}/{self._total} {format_scores(scores)} "
            f"tokens/s {throughput.tokens_per_second:,.0f}{mfu} "
            f"input {throughput.input_share:.0%} eta {timedelta(seconds=round(left))}"
        )


def make_display(console: Console, *, first_step: int, total_steps: int) -> ProgressDisplay:
    """Returns the display of a run, silent on all processes but the first."""
    if jax.process_index() != 0:
        console = Console(quiet=True)
    return ProgressDisplay(console, first_step=first_step, total_steps=total_steps)


def format_scores(scores: Mapping[str, float]) -> str:
    """Returns ``loss 6.912 mlm_accuracy 12.1% learning_rate 9.9e-05``."""
    return " ".join(f"{name} {_format(name, value)}" for name, value in scores.items())


def _format(name: str, value: float) -> str:
    if name.endswith("accuracy"):
        return f"{value:.1%}"
    if name == "learning_rate":
        return f"{value:.2e}"
    return f"{value:.3f}"
