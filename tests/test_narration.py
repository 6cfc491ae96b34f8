"""Progress messages of stages: at once, during long stages, and at their end."""

import io
import re
import time

import pytest
from rich.console import Console

from bert_jax import narration
from bert_jax.narration import Narrator, doing, hush, narrator_of, speaking
from bert_jax.train import progress_display
from bert_jax.train.metrics import Throughput
from bert_jax.train.progress_display import ProgressDisplay


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Returns a console that is not a terminal. Delays are a tenth of the usual."""
    monkeypatch.setattr(narration, "FIRST_LINE_SECONDS", 0.05)
    monkeypatch.setattr(narration, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(narration, "LAST_LINE_SECONDS", 0.1)
    return Console(file=io.StringIO(), width=80)


def said(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def wait_for(console: Console, lines: int) -> list[str]:
    end = time.monotonic() + 30
    while len(said(console)) < lines:
        assert time.monotonic() < end, said(console)
        time.sleep(0.01)
    return said(console)


def test_a_log_has_a_line_for_each_text_of_a_long_stage(console: Console) -> None:
    text = "reading the dataset"
    with speaking(console), doing(lambda: text):
        wait_for(console, 1)
        time.sleep(0.6)  # the time of two more lines
        text = "reading shard 2"
        wait_for(console, 2)
    first, second, last = said(console)
    assert first == "reading the dataset …"
    assert re.fullmatch(r"reading shard 2 …( \d+ s)?", second)
    assert re.fullmatch(r"reading shard 2: \d+\.\d s", last)


def test_a_short_stage_prints_only_if_immediate(console: Console) -> None:
    with speaking(console):
        with doing("opening the devices"):
            pass
        assert said(console) == []
        with doing("compiling the step", at_once=True):
            assert said(console) == ["compiling the step …"]
    assert said(console) == ["compiling the step …"]


def test_only_the_innermost_stage_prints_unless_it_fails(console: Console) -> None:
    def fail() -> None:
        with doing("outer", at_once=True):
            with doing("inner"):
                wait_for(console, 2)
            raise ValueError("broken")

    with speaking(console):
        with pytest.raises(ValueError, match="broken"):
            fail()
        count = len(said(console))
        time.sleep(0.3)
    lines = said(console)
    assert lines[:2] == ["outer …", "inner …"]
    assert len(lines) == count
    assert not any(line.startswith("outer:") for line in lines)


def test_other_processes_print_no_stages(console: Console) -> None:
    with speaking(None), doing("nothing"):
        pass
    with speaking(console):
        assert narrator_of(console) is narrator_of(console)
        hush()
        with doing("nothing", at_once=True):
            pass
    assert said(console) == []


SPEED = Throughput(tokens_per_second=1234.5, rows_per_second=10, input_share=0.03, mfu=None)
SCORES = {"loss": 6.9123, "mlm_loss": 6.2, "mlm_accuracy": 0.121, "learning_rate": 9.9e-5}


def test_80_columns_fit_step_loss_speed_and_time_left() -> None:
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    display = ProgressDisplay(Narrator(terminal), first_step=0, total_steps=1_000_000)
    display.step_done(1)
    display.report(123_456, SCORES, SPEED)
    display.step_done(123_457)
    display.close()
    assert isinstance(terminal.file, io.StringIO)
    shown = terminal.file.getvalue()
    assert "step 1 of 1,000,000: done after" in shown
    assert "step 123457/1000000 loss 6.912 tokens/s 1,234 eta 0:00:0" in shown


def test_plain_output_shows_slow_steps_between_reports(
    console: Console,
) -> None:
    display = ProgressDisplay(narrator_of(console), first_step=4, total_steps=9)
    display.step_done(5)
    display.report(6, SCORES, SPEED)
    display.step_done(7)
    lines = wait_for(console, 3)
    display.close()
    assert lines[0].startswith("step 5 of 9: done after")
    assert lines[1].startswith("step 6/9 loss 6.912 tokens/s")
    # Step 7 has no scores yet.
    assert re.fullmatch(r"step 7/9 eta 0:00:0\d …", lines[2])


def test_time_left_excludes_the_first_step(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now)
    display = ProgressDisplay(narrator_of(console), first_step=4, total_steps=115)
    now += 60
    display.step_done(5)
    now += 10
    display.report(15, SCORES, SPEED)
    display.close()
    assert "eta 0:01:40 " in said(console)[-1]
