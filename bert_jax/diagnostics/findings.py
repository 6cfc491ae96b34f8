"""Findings of the doctor, and their display."""

import functools
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from bert_jax import arguments
from bert_jax.errors import UserError, counted

Level = Literal["ok", "warn", "problem"]

_TOPIC_WIDTH: Final = len("tensorflow-datasets")
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warn": "yellow", "problem": "bold red"}


class Finding(NamedTuple):
    """One result of a check: ``Finding("warn", "disk", "1.2 GB free in /tmp, room for …")``.

    `problem`: a run will fail. `warn`: a run may fail, or be slower than necessary.
    """

    level: Level
    topic: str
    text: str


class DoctorReport(NamedTuple):
    """All findings, in the order of the checks."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; warnings are allowed."""
        return not self.of_level("problem")

    @arguments.checked
    def of_level(self, level: Level) -> list[Finding]:
        """Returns the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]


ok: Final = functools.partial(Finding, "ok")
warn: Final = functools.partial(Finding, "warn")
problem: Final = functools.partial(Finding, "problem")


def checked(topic: str, check: Callable[[], str]) -> Finding:
    """Returns the text of a check as `ok`, or the UserError that it raises as a `problem`."""
    try:
        return ok(topic, check())
    except UserError as error:
        return problem(topic, str(error))


def show(findings: Iterable[Finding], console: Console) -> DoctorReport:
    """Prints a line for each finding, then counts of problems and warnings.

    On a terminal, lines are coloured and wrapped. Elsewhere, each finding is one plain line.
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
            line = f"{level:<8}{topic}: {text}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    report = DoctorReport(tuple(shown))
    problems, warnings = len(report.of_level("problem")), len(report.of_level("warn"))
    numbers = f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
    console.print(numbers, highlight=False)
    return report
