"""Shows progress during long stages.

A verb chooses the console with `speaking`. Code that it calls names its long stages with `doing`.
On a terminal and in a notebook, one live line shows the current stage. Elsewhere, such as in a log,
a stage is printed after half a second, again when its text has changed, and with its duration at
its end.
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
LAST_LINE_SECONDS: Final = 1.0  # no line at the end of a shorter stage
QUIET_SECONDS: Final = 2.5  # pause between lines; after 25 s, a tenth of the elapsed time
SLOW_SECONDS: Final = 2.0  # when `announcing` prints its line


@dataclasses.dataclass(eq=False)
class _Stage:
    what: Callable[[], str]
    lasting: bool
    started: float
    due: float  # time of its next line in a log
    logged: str = ""  # text of its last line in a log

    def line(self, *, in_log: bool = False) -> str:
        seconds = time.monotonic() - self.started
        if self.lasting:
            return f"{self.what()} …" if in_log else self.what()
        return f"{self.what()} …" + (f" {seconds:.0f} s" if seconds >= 1 else "")


class Narrator:
    """Shows lines and the current stage on one console. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.is_live = console.is_terminal or console.is_jupyter  # whether it has a live line
        self._stages: list[_Stage] = []
        self._lock = threading.RLock()
        self._shown = contextlib.ExitStack()  # stops the live line or the thread
        self._page = Text()  # all lines of a notebook cell
        self._cell: Any = None  # IPython's handle of the cell output

    def say(self, line: str, *, style: str = "") -> None:
        """Prints a line."""
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
        """Shows the name of a stage while the block runs.

        Args:
            what: name of the stage, or a function that returns the current text of the line.
            at_once: whether to print the first line immediately.
            lasting: whether the stage lasts for the whole run. Its line shows no seconds. No line
                is printed when it begins or ends.
        """
        now = time.monotonic()
        due = now + (QUIET_SECONDS if lasting else FIRST_LINE_SECONDS)
        stage = _Stage(what if callable(what) else lambda: what, lasting, started=now, due=due)
        with self._lock:
            self._stages.append(stage)
            if len(self._stages) == 1:
                self._start()
            if at_once and not self.is_live:
                stage.logged = stage.what()
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
        # Do not acquire the lock here. The caller holds rich's lock, and `say` acquires the two
        # locks in the opposite order, so this would deadlock.
        stage = next(iter(self._stages[-1:]), None)
        text = Text(stage.line() if stage else "", no_wrap=True, overflow="ellipsis")
        return text if stage is None or stage.lasting else Spinner("dots", text)

    def _show_cell(self) -> None:
        """Updates the output of a notebook cell. rich renders it as HTML."""
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
                if self.is_live or time.monotonic() < stage.due:
                    continue
                if (text := stage.what()) != stage.logged:
                    stage.logged = text
                    self.say(stage.line(in_log=True), style="dim")


_NARRATORS: Final[list[Narrator]] = []


@contextlib.contextmanager
def speaking(console: Console | None) -> Iterator[None]:
    """Makes `doing` print to a console within the block. With None, does nothing."""
    if console is None or (_NARRATORS and _NARRATORS[-1].console is console):
        yield
        return
    _NARRATORS.append(narrator := Narrator(console))
    try:
        yield
    finally:
        _NARRATORS.remove(narrator)


def current_console() -> Console:
    """Returns the console of the innermost `speaking`, or a new console for standard output."""
    return _NARRATORS[-1].console if _NARRATORS else Console()


def narrator_of(console: Console) -> Narrator:
    """Returns the narrator of a console. Creates a narrator if `speaking` did not."""
    return next((each for each in _NARRATORS if each.console is console), Narrator(console))


def doing(
    what: str | Callable[[], str], *, at_once: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Shows a stage; see `Narrator.stage`. Shows nothing outside of `speaking`."""
    if not _NARRATORS:
        return contextlib.nullcontext()
    return _NARRATORS[-1].stage(what, at_once=at_once)


@contextlib.contextmanager
def announcing(what: str) -> Iterator[None]:
    """Prints one line to standard error if the block is slow. Within `speaking`, shows a stage."""
    if _NARRATORS:
        with doing(what):
            yield
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    timer = threading.Timer(SLOW_SECONDS, console.print, [Text(f"{what} …")])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tell(line: str) -> None:
    """Prints a line on the innermost console. Prints nothing outside of `speaking`."""
    if _NARRATORS:
        _NARRATORS[-1].say(line)


def hush() -> None:
    """Silences all consoles. For processes other than process 0, which prints the progress."""
    for each in _NARRATORS:
        each.console.quiet = True
