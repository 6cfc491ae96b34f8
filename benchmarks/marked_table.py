"""Markdown tables between two marks of a page, such as ``<!-- plan_table 1 -->``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bert_jax.files.atomic import write_whole

ENDS: Final = "<!-- end -->\n"


def line(cells: Iterable[str]) -> str:
    """Returns a line of Markdown: ``| a | b |``."""
    return f"| {' | '.join(cells)} |"


def begins(mark: str) -> str:
    """Returns the line that begins the table `mark`."""
    return f"<!-- {mark} -->\n"


def inserted(page: Path, mark: str) -> list[str]:
    """Returns the lines between the marks of a page, without empty lines at both ends.

    Raises:
        ValueError: if the page lacks the marks.
    """
    _, inside, _ = _parts(page, mark)
    return inside.strip("\n").splitlines()


def insert(page: Path, mark: str, lines: Iterable[str]) -> None:
    """Replaces the text between two marks of a page.

    Raises:
        ValueError: if the page lacks the marks.
    """
    before, _, after = _parts(page, mark)
    inside = "".join(f"{each}\n" for each in lines)
    write_whole(page, f"{before}{begins(mark)}\n{inside}\n{ENDS}{after}")


def _parts(page: Path, mark: str) -> tuple[str, str, str]:
    """Returns the text before, between and after the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(begins(mark))
    inside, ends, after = rest.partition(ENDS)
    if not ends:
        raise ValueError(f"{page}: no {begins(mark)!r} with {ENDS!r} behind it")
    return before, inside, after
