"""Labels of sequence classification and regression: as files spell them → targets."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.errors import UserError, counted, did_you_mean
from bert_jax.files.read import is_whole
from bert_jax.model.config import HeadsSection, ProblemName
from bert_jax.tasks.columns import TextRow

# The index of a label in `Labelling.names`, the indices of several, a number to regress on, or
# None: not known.
Target: TypeAlias = int | frozenset[int] | float | None
Weighting: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]

SHOWN: Final = 20  # labels in a message


class Labelling(NamedTuple):
    """What the outputs of the head mean."""

    problem: ProblemName
    names: tuple[str, ...]  # in the order of the logits; of a regression its one number's
    threshold: float = 0.5  # several labels: the least probability that predicts one

    @property
    def heads(self) -> HeadsSection:
        """The model's heads: a pooled [CLS] and a classifier on it."""
        return HeadsSection(
            pooler=True,
            mlm=False,
            next_sentence=False,
            task="sequence_classification",
            labels=self.names,
            problem=self.problem,
        )

    def spell(self, target: Target) -> str | list[str] | float | None:
        """Returns a target as records have it: a name, names in their order, a number or None."""
        if target is None:
            return None
        if isinstance(target, frozenset):
            return [self.names[number] for number in sorted(target)]
        if self.problem == "regression":
            return float(target)
        return self.names[int(target)]


def is_missing(row: TextRow) -> bool:
    """Whether a row has no label."""
    return row.label is None or row.label == ""


def number_of(label: Any) -> float | None:
    """Returns the finite number that a label is or spells; None of others."""
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        return None
    # Python's own spelling of 1000; no table means it.
    if isinstance(label, str) and "_" in label:
        return None
    try:
        found = float(label)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def names_of(row: TextRow, *, column: str, problem: ProblemName, separator: str) -> list[str]:
    """Returns the names in a row's label: one, or for several labels none to many.

    Raises RowError: a list where there is one label, or an object.
    """
    found = row.label
    if is_missing(row):
        return []
    if problem == "multi_label":
        parts = found.split(separator) if isinstance(found, str) else found
        if isinstance(parts, list):
            names = [_name(row, part, column) for part in parts]
            return [name for name in (name.strip() for name in names) if name]
    return [_name(row, found, column)]


def _name(row: TextRow, found: Any, column: str) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, float) and found.is_integer():
        return str(int(found))  # what Parquet makes of whole numbers when some are missing
    if isinstance(found, str | int | float):
        return str(found)
    raise RowError(f'{row.place}: "{column}" found {found!r}, allowed: a label')


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


def without_strays(rows: Sequence[TextRow], *, column: str, errors: RowErrors) -> Sequence[TextRow]:
    """Returns the rows without labels that keep a table from being a regression.

    Of ``["2.98", "3.1", "n/a"]`` each would be a class of its own: "n/a" is a stray. There are
    strays if more than half of the labels are numbers, and one at least is not whole. Raises
    RowError: there is one, and rows are not skipped.
    """
    labelled = [row for row in rows if not is_missing(row)]
    if any(isinstance(row.label, list) for row in labelled):
        return rows
    numbers = [number_of(row.label) for row in labelled]
    known = [number for number in numbers if number is not None]
    if 2 * len(known) <= len(labelled) or all(number.is_integer() for number in known):
        return rows

    def check(row: TextRow) -> TextRow:
        if is_missing(row) or number_of(row.label) is not None:
            return row
        raise RowError(
            f'{row.place}: "{column}" found {row.label!r}, allowed: a number, as '
            f"{len(known):,} of {len(labelled):,} labels are; or "
            "finetune.task.problem=single_label, where each is the name of a class"
        )

    return errors.kept(rows, check)


def find_names(
    rows: Sequence[TextRow], *, column: str, problem: ProblemName, separator: str
) -> tuple[str, ...]:
    """Returns a training set's labels, sorted, whole numbers by size; UserError: fewer than two."""
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
            f'{file}: "{column}" found {found} in {counted(len(rows), "row")}, allowed: two labels '
            "or more"
        )
    if all(is_whole(name.removeprefix("-")) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def target_of(
    row: TextRow, labelling: Labelling, *, column: str, separator: str, required: bool
) -> Target:
    """Returns what a row's label is to the model.

    Where it is `required`, a missing label is an error; several labels may be none. Raises
    RowError: no label where one is required, an unknown one, or no number in a regression.
    """
    several = labelling.problem == "multi_label"
    # No labels at all are spelled "" in a text.
    if is_missing(row) and not (several and row.label == ""):
        if required:
            is_number = labelling.problem == "regression"
            allowed = "a number" if is_number else spell_names(labelling.names)
            raise RowError(f'{row.place}: "{column}" found no label, allowed: {allowed}')
        return None
    if labelling.problem == "regression":
        number = number_of(row.label)
        if number is None:
            raise RowError(f'{row.place}: "{column}" found {row.label!r}, allowed: a number')
        return number
    names = names_of(row, column=column, problem=labelling.problem, separator=separator)
    numbers = [label_number(name, labelling.names, f'{row.place}: "{column}"') for name in names]
    return frozenset(numbers) if several else numbers[0]


def spell_names(names: Sequence[str]) -> str:
    """Returns labels for a message: ``negative, positive``."""
    return ", ".join(names[:SHOWN]) + (", …" if names[SHOWN:] else "")


def label_number(name: str, names: Sequence[str], place: str) -> int:
    """Returns where a label is among the model's; RowError: nowhere."""
    try:
        return names.index(name)
    except ValueError:
        raise RowError(
            f'{place} found "{name}", allowed: {spell_names(names)}{did_you_mean(name, names)}'
        ) from None


def weights_of(
    weighting: Weighting, labelling: Labelling, targets: Iterable[Target]
) -> tuple[float, ...] | None:
    """Returns what an example of each label weighs in the loss; None for 1.

    "balanced" → labelled / (labels × labelled with this one), so that every label weighs the same
    in all, as scikit-learn's `compute_class_weight`. Weights by label are 1 for those not named.
    The targets are those of the training set. Raises UserError: weights in a regression, or of a
    label that is not there.
    """
    if weighting == "none":
        return None
    if labelling.problem == "regression":
        raise UserError('task.class_weights: found them in a regression, allowed: "none"')
    if isinstance(weighting, Mapping):
        for name in weighting:
            label_number(name, labelling.names, "task.class_weights:")
        return tuple(float(weighting.get(name, 1.0)) for name in labelling.names)
    counts: Counter[int] = Counter()
    for target in targets:
        counts.update(target if isinstance(target, frozenset) else [int(target or 0)])
    # A label of the model's that this training set lacks weighs as any.
    return tuple(
        counts.total() / (len(counts) * counts[number]) if counts[number] else 1.0
        for number in range(len(labelling.names))
    )
