"""What a verb tells in a notebook: one block of HTML in the output of its cell, kept up to date."""

import html
import io
import sys
from typing import Any, Final

from rich.console import Console, ConsoleRenderable, RenderHook

_WIDTH: Final = 110  # characters of a table
_BLOCK: Final = '<pre style="margin:0;white-space:pre-wrap;line-height:1.35">{}</pre>'


class NotebookPage(RenderHook):
    """Lines that stay, and below them one that is replaced; what a console prints joins them.

    It needs IPython, which every kernel has, and no widgets.
    """

    def __init__(self) -> None:
        self._console = Console(
            file=io.StringIO(),
            record=True,
            width=_WIDTH,
            force_terminal=True,
            force_jupyter=False,
            color_system="truecolor",
        )
        self._html: list[str] = []
        self._text: list[str] = []
        self._live: tuple[str, float | None] = ("", None)
        self._shown = ""
        self._handle: Any = None  # of IPython's display; its updates may come from any thread

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Takes what a console is about to print, and leaves it nothing."""
        self.add(*renderables)
        return []

    def add(self, *renderables: ConsoleRenderable) -> None:
        """Keeps lines, or a table."""
        self._console.print(*renderables, soft_wrap=True)
        self._text.append(self._console.export_text(clear=False))
        self._html.append(self._console.export_html(code_format="{code}", inline_styles=True))
        self._update()

    def show(self, live: str = "", *, share: float | None = None) -> None:
        """Replaces the line at the end, with a bar for the share of the work done, 0 to 1."""
        self._live = live, share
        self._update()

    def _update(self) -> None:
        live, share = self._live
        kept = "".join(self._html).rstrip("\n")
        bar = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
        parts = (kept, bar + html.escape(live) if live else "")
        content = "".join(_BLOCK.format(part) for part in parts if part)
        if content == self._shown:
            return
        self._shown = content
        text = "".join(self._text) + live
        data = {"text/html": content, "text/plain": text}
        if self._handle is None:
            display = sys.modules["IPython.display"].display
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
