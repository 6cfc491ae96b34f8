"""The kind of problem and the names of the labels, found in a training table."""

from __future__ import annotations

from collections.abc import Sequence

from bert_jax.errors import UserError
from bert_jax.model.config import ProblemName
from bert_jax.tasks.columns import TextRow
from bert_jax.tasks.labels import is_missing, names_of, number_of


def find_problem(rows: Sequence[TextRow]) -> tuple[ProblemName, str]:
    """Returns the kind of problem that labels are of, and why.

    Lists → "multi_label". Numbers of which one at least is not whole → "regression". Whatever
    else → "single_label".
    """
    labels = [row.label for row in rows if not is_missing(row)]
    if any(isinstance(label, list) for label in labels):
        return "multi_label", "labels are lists"
    numbers = [number_of(label) for label in labels]
    known = [number for number in numbers if number is not None]
    if len(known) == len(labels) and any(not number.is_integer() for number in known):
        return "regression", "labels are numbers, and not whole"
    whole = bool(labels) and len(known) == len(labels)
    return "single_label", "labels are whole numbers" if whole else "labels are names"


def find_names(
    rows: Sequence[TextRow], *, column: str, problem: ProblemName, separator: str
) -> tuple[str, ...]:
    """Returns the labels of a training set, sorted; whole numbers by their size.

    Raises:
        UserError: fewer than two.
    """
    if problem == "regression":
        return (column,)
    names = {
        name
        for row in rows
        for name in names_of(row, column=column, problem=problem, separator=separator)
    }
    if len(names) < 2:
        found = f'only "{names.pop()}"' if names else "no label"
        file = rows[0].place.rpartition(": ")[0]
        raise UserError(
            f'{file}: "{column}" found {found} in {len(rows):,} rows, allowed: two labels or more'
        )
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
