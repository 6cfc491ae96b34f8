"""What the process is at, said aloud: nobody waits in silence.

A verb makes a console the place where this is shown; whatever takes long, however deep below, says
so::

    with speaking(console):
        with doing("reading the dataset"):
            ...

A terminal has one live line, with the seconds that it has lasted; the output of a notebook's cell
too, below the lines that stay. Elsewhere a stage gets a line when it has lasted half a second, one
more now and then while it lasts, and one with its seconds when it is done.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from bert_jax.notebook import NotebookPage

# How long nothing may be said without a terminal: by the age of the stage, seconds both.
_QUIET: Final = ((60.0, 2.5), (300.0, 10.0), (float("inf"), 60.0))
_BEGIN: Final = 0.5  # seconds that a stage lasts before it gets a line
_TELL: Final = 1.0  # seconds of a stage that are worth a line at its end
_REFRESH: Final = 0.25  # seconds between two states of the live line


@dataclasses.dataclass(eq=False)
class _Stage:
    """Something under way."""

    what: Callable[[], str]
    told: bool  # whether its first line is out
    lasting: bool  # it speaks for itself, and is shown as it is
    share: Callable[[], float] | None
    started: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Narrator:
    """Says on one console what is under way; safe to use from several threads."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._stages: list[_Stage] = []
        self._lock = threading.RLock()
        self._changed = threading.Event()
        self._heard = time.monotonic()
        self._live: Live | None = None
        self._page = NotebookPage() if console.is_jupyter and not console.quiet else None
        self._watching = False

    @property
    def is_live(self) -> bool:
        """Whether there is a line that is replaced: what passes needs no line that stays."""
        return self.console.is_terminal or self._page is not None

    def say(self, line: str, *, style: str = "") -> None:
        """Shows a line that stays."""
        with self._lock:
            self._heard = time.monotonic()
            if self._page is None:
                self.console.print(Text(line), style=style, soft_wrap=True)
            else:
                self._page.add(Text(line, style=style))

    def stay_silent(self) -> None:
        """Counts as a line without one: work advances, so nobody need hear that it lasts."""
        with self._lock:
            self._heard = time.monotonic()
            self._changed.set()

    def be_quiet(self) -> None:
        """Shows nothing more."""
        with self._lock:
            self.console, self._page = Console(quiet=True), None

    @contextlib.contextmanager
    def printing(self) -> Iterator[None]:
        """What the console prints within the block has its place among the lines that are said."""
        console = self.console
        if self._page is None:
            yield
            return
        console.push_render_hook(self._page)
        console.quiet = True  # else it would show an empty block for each line
        try:
            yield
        finally:
            console.quiet = False
            console.pop_render_hook()

    @contextlib.contextmanager
    def stage(
        self,
        what: str | Callable[[], str],
        *,
        at_once: bool = False,
        lasting: bool = False,
        share: Callable[[], float] | None = None,
    ) -> Iterator[None]:
        """Shows what the block does for as long as it runs.

        A function `what` is asked again each time. `at_once` gives it a line now, not when it has
        lasted a while; what is `lasting` gets none at its beginning and end. `share` returns how
        much of it is done, 0 to 1, for a bar where there is one.
        """
        text = what if callable(what) else lambda: what
        stage = _Stage(text, told=lasting, lasting=lasting, share=share)
        self._begin(stage)
        if at_once and not self.is_live:
            self._tell(stage)
        try:
            yield
        except BaseException:
            self._end(stage)
            raise
        self._end(stage)
        if stage.seconds >= _TELL and not lasting:
            self.say(f"{text()}: {stage.seconds:.1f} s", style="dim")

    def _begin(self, stage: _Stage) -> None:
        with self._lock:
            self._stages.append(stage)
            if self.console.is_terminal:
                if self._live is None:
                    self._live = Live(
                        console=self.console,
                        get_renderable=self._shown,
                        refresh_per_second=4,
                        transient=True,
                        # What goes elsewhere than to this terminal stays there.
                        redirect_stdout=not self.console.stderr,
                        redirect_stderr=sys.stderr.isatty(),
                    )
                    self._live.start()
            elif not self._watching and (self._page is not None or not self.console.quiet):
                self._watching = True
                threading.Thread(target=self._watch, name="narrator", daemon=True).start()
            self._changed.set()

    def _end(self, stage: _Stage) -> None:
        with self._lock:
            self._stages.remove(stage)
            if not self._stages and self._live is not None:
                self._live.stop()
                self._live = None
            if self._page is not None:
                self._refresh()
            self._changed.set()

    def _shown(self) -> Text | Spinner:
        """Returns the live line of a terminal."""
        with self._lock:
            if not self._stages:
                return Text("")
            stage = self._stages[-1]
        text = Text(_line(stage), no_wrap=True, overflow="ellipsis")
        return text if stage.lasting else Spinner("dots", text)

    def _refresh(self) -> None:
        """Brings the output of a notebook's cell up to date."""
        assert self._page is not None
        with self._lock:
            if not self._stages:
                self._page.show()
                return
            share = next((s.share for s in reversed(self._stages) if s.share is not None), None)
            self._page.show(_line(self._stages[-1]), share=None if share is None else share())

    def _tell(self, stage: _Stage) -> None:
        """Shows a line of what is under way, if it still is."""
        with self._lock:
            if stage in self._stages:
                seconds = "" if not stage.told or stage.lasting else f" {stage.seconds:.0f} s"
                stage.told = True
                self.say(f"{stage.what()} …{seconds}", style="dim")

    def _watch(self) -> None:
        """Breaks the silence, for as long as anything is under way."""
        while True:
            with self._lock:
                if not self._stages:
                    self._watching = False
                    return
                stage = self._stages[-1]
                self._changed.clear()
                if self._page is not None:
                    due = time.monotonic() + _REFRESH
                elif stage.told:
                    quiet = next(limit for age, limit in _QUIET if stage.seconds <= age)
                    due = max(self._heard, stage.started) + quiet
                else:
                    due = stage.started + _BEGIN
            if not self._changed.wait(max(due - time.monotonic(), 0.0)):
                self._tell(stage) if self._page is None else self._refresh()


def _line(stage: _Stage) -> str:
    if stage.lasting:
        return stage.what()
    seconds = f" {stage.seconds:.0f} s" if stage.seconds >= 1 else ""
    return f"{stage.what()} …{seconds}"


_NARRATORS: Final[list[Narrator]] = []


@contextlib.contextmanager
def speaking(console: Console | None) -> Iterator[None]:
    """Makes a console the place where `doing` is shown; None changes nothing.

    Within the block of another the outer one stays, if it is the same console.
    """
    if console is None or (_NARRATORS and _NARRATORS[-1].console is console):
        yield
        return
    narrator = Narrator(console)
    _NARRATORS.append(narrator)
    with narrator.printing():
        try:
            yield
        finally:
            _NARRATORS.remove(narrator)


def current_console() -> Console:
    """Returns the console of the innermost `speaking`; a new one of standard output without."""
    return _NARRATORS[-1].console if _NARRATORS else Console()


def narrator_of(console: Console) -> Narrator:
    """Returns the narrator of a console: that of `speaking`, or a new one."""
    return next((each for each in _NARRATORS if each.console is console), Narrator(console))


@contextlib.contextmanager
def doing(what: str | Callable[[], str], *, at_once: bool = False) -> Iterator[None]:
    """Shows what the block does, see `Narrator.stage`; outside of `speaking` nothing."""
    if not _NARRATORS:
        yield
        return
    with _NARRATORS[-1].stage(what, at_once=at_once):
        yield


def hush() -> None:
    """Shows nothing more: another process of the job speaks."""
    for each in _NARRATORS:
        each.be_quiet()
