"""Shows what the process is doing while a stage takes long.

A verb chooses the console with `speaking`; any code below it names its long stages with `doing`. A
terminal and the output of a notebook's cell have one live line. Elsewhere a stage gets a line after
half a second, more while it lasts, and one with its seconds at its end.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

FIRST_LINE_SECONDS: Final = 0.5
LAST_LINE_SECONDS: Final = 1.0  # a shorter stage gets no line at its end
QUIET_SECONDS: Final = 2.5  # between two lines; later a tenth of the stage's time


@dataclasses.dataclass(eq=False)
class _Stage:
    what: Callable[[], str]
    lasting: bool
    started: float
    due: float  # time of its next line in a log

    def line(self, *, in_log: bool = False) -> str:
        seconds = time.monotonic() - self.started
        if self.lasting:
            return f"{self.what()} …" if in_log else self.what()
        return f"{self.what()} …" + (f" {seconds:.0f} s" if seconds >= 1 else "")


class Narrator:
    """Shows lines and the current stage on one console; safe to use from several threads."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.is_live = console.is_terminal or console.is_jupyter  # has a line that is replaced
        self._stages: list[_Stage] = []
        self._lock = threading.RLock()
        self._shown = contextlib.ExitStack()  # the live line, or the thread that writes lines
        self._page = Text()  # all lines of a notebook's cell
        self._cell: Any = None  # IPython's handle of the cell's output

    def say(self, line: str, *, style: str = "") -> None:
        """Shows a line that stays."""
        with self._lock:
            now = time.monotonic()
            for stage in self._stages:
                stage.due = now + max(QUIET_SECONDS, (now - stage.started) / 10)
            if self.console.is_jupyter:
                self._page.append(f"{line}\n", style=style)
                self._show_cell()
            else:
                self.console.print(Text(line), style=style, soft_wrap=True)

    @contextlib.contextmanager
    def stage(
        self, what: str | Callable[[], str], *, at_once: bool = False, lasting: bool = False
    ) -> Iterator[None]:
        """Shows the name of the block while it runs; a function `what` is called for each line.

        With `at_once` the first line comes at once. A `lasting` stage is shown without seconds, and
        gets no line at its beginning and end.
        """
        now = time.monotonic()
        due = now + (QUIET_SECONDS if lasting else FIRST_LINE_SECONDS)
        stage = _Stage(what if callable(what) else lambda: what, lasting, started=now, due=due)
        with self._lock:
            self._stages.append(stage)
            if len(self._stages) == 1:
                self._start()
            if at_once and not self.is_live:
                self.say(stage.line(), style="dim")
        try:
            yield
        finally:
            with self._lock:
                self._stages.remove(stage)
                if not self._stages:
                    self._shown.close()
        if (seconds := time.monotonic() - now) >= LAST_LINE_SECONDS and not lasting:
            self.say(f"{stage.what()}: {seconds:.1f} s", style="dim")

    def _start(self) -> None:
        if self.is_live and not self.console.is_jupyter:
            live = Live(
                console=self.console,
                get_renderable=self._live_line,
                transient=True,
                # Redirect only the streams of this terminal.
                redirect_stdout=not self.console.stderr,
                redirect_stderr=sys.stderr.isatty(),
            )
            self._shown.enter_context(live)
        elif not self.console.quiet:
            ended = threading.Event()
            self._shown.callback(ended.set)
            self._shown.callback(self._show_cell)
            threading.Thread(target=self._watch, args=[ended], daemon=True).start()

    def _live_line(self) -> Text | Spinner:
        # Without the lock: rich holds its own here, and `say` takes the two in the other order.
        stage = next(iter(self._stages[-1:]), None)
        text = Text(stage.line() if stage else "", no_wrap=True, overflow="ellipsis")
        return text if stage is None or stage.lasting else Spinner("dots", text)

    def _show_cell(self) -> None:
        """Updates the output of a notebook's cell; rich makes it HTML."""
        if self.console.quiet or not self.console.is_jupyter:
            return
        page = self._page + Text(self._stages[-1].line() if self._stages else "")
        if self._cell is None:
            self._cell = sys.modules["IPython.display"].display(page, display_id=True)
        else:
            self._cell.update(page)

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.25):
            with self._lock:
                if ended.is_set():
                    return
                self._show_cell()
                stage = self._stages[-1]
                if not self.is_live and time.monotonic() >= stage.due:
                    self.say(stage.line(in_log=True), style="dim")


_NARRATORS: Final[list[Narrator]] = []


@contextlib.contextmanager
def speaking(console: Console | None) -> Iterator[None]:
    """Makes a console the place where `doing` is shown; None changes nothing."""
    if console is None or (_NARRATORS and _NARRATORS[-1].console is console):
        yield
        return
    _NARRATORS.append(narrator := Narrator(console))
    try:
        yield
    finally:
        _NARRATORS.remove(narrator)


def current_console() -> Console:
    """Returns the console of the innermost `speaking`, or a new one of standard output."""
    return _NARRATORS[-1].console if _NARRATORS else Console()


def narrator_of(console: Console) -> Narrator:
    """Returns the narrator that `speaking` made for a console, or a new one."""
    return next((each for each in _NARRATORS if each.console is console), Narrator(console))


def doing(
    what: str | Callable[[], str], *, at_once: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Shows the name of a block, see `Narrator.stage`; shows nothing outside of `speaking`."""
    if not _NARRATORS:
        return contextlib.nullcontext()
    return _NARRATORS[-1].stage(what, at_once=at_once)


def hush() -> None:
    """Shows nothing more: another process of the job speaks."""
    for each in _NARRATORS:
        each.console.quiet = True
