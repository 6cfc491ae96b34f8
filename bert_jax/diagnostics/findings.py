"""What the doctor found, and how it is shown."""

import functools
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from bert_jax.errors import counted

Level = Literal["ok", "warn", "problem"]

_TOPIC_WIDTH: Final = len("tensorflow-datasets")
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "problem": "bold red"}


class Finding(NamedTuple):
    """One thing looked at: ``Finding("warn", "disk", "1.2 GB free in /tmp, room for …")``.

    `problem`: a run will fail. `warn`: it may, or will be slower than it could.
    """

    level: Level
    topic: str
    text: str


class DoctorReport(NamedTuple):
    """Everything looked at, in the order in which a run would meet it."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; warnings are allowed."""
        return not self.of_level("problem")

    def of_level(self, level: Level) -> list[Finding]:
        """Returns the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


ok: Final = functools.partial(Finding, "ok")  # as it should be
warn: Final = functools.partial(Finding, "warn")  # may go wrong
problem: Final = functools.partial(Finding, "problem")  # will go wrong


def show(findings: Iterable[Finding], console: Console) -> DoctorReport:
    """Shows findings as they come, a line for each, then what they come to; returns them.

    On a terminal in colour and wrapped to its width; elsewhere plain lines, one a finding, for
    grep.
    """
    shown: list[Finding] = []
    for finding in findings:
        shown.append(finding)
        level, topic, text = finding
        if console.is_terminal:
            table = Table.grid(padding=(0, 2))
            table.add_column(width=len("problem"))
            table.add_column(width=_TOPIC_WIDTH)
            table.add_row(f"[{_STYLES[level]}]{level}[/]", topic, text.replace("[", r"\["))
            console.print(table)
        else:
            console.print(
                f"{level:<8}{topic}: {text}", markup=False, highlight=False, soft_wrap=True
            )
    report = DoctorReport(tuple(shown))
    problems, warnings = len(report.of_level("problem")), len(report.of_level("warn"))
    console.print(
        f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}", highlight=False
    )
    return report
