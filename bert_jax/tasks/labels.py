"""Labels of sequence classification and regression: as files spell them → targets."""

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from bert_jax.data.tables import RowError
from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.read import is_whole
from bert_jax.model.config import ProblemName

# The index of a label in `Labelling.names`, the indices of several, a number to regress on, or
# None: unknown.
Target: TypeAlias = int | frozenset[int] | float | None
Weighting: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]

SHOWN: Final = 20  # labels in a message


class TextRow(NamedTuple):
    """One example whose label is still as the file spells it."""

    place: str  # such as "t.csv: line 7"
    line: int
    id: int | str
    text: str
    pair: str | None
    label: Any  # str, number, bool or list; a missing label is None

    @property
    def unlabelled(self) -> bool:
        """Whether the row has no label."""
        return self.label is None or self.label == ""


class Labelling(NamedTuple):
    """The meaning of labels: the outputs of the head, and how a file spells them."""

    problem: ProblemName
    names: tuple[str, ...]  # in the order of the logits; a regression has the name of its number
    column: str = ""  # column of the labels, for messages
    separator: str = "|"  # between several labels in a text
    threshold: float = 0.5  # least probability that predicts one of several labels
    hint: str = ""  # end of the message about a label that is no number

    def spell(self, target: Target) -> str | list[str] | float | None:
        """Returns a target as records have it: a name, names in their order, a number or None."""
        if target is None:
            return None
        if isinstance(target, frozenset):
            return [self.names[number] for number in sorted(target)]
        if self.problem == "regression":
            return float(target)
        return self.names[int(target)]

    def target(self, row: TextRow, *, required: bool) -> Target:
        """Returns the target of a row's label.

        Where it is `required`, a missing label is an error; several labels may be none. Raises
        RowError: no label where one is required, an unknown one, or no number in a regression.
        """
        several, place = self.problem == "multi_label", self._place(row)
        # In a text, "" spells an empty set of labels.
        if row.unlabelled and not (several and row.label == ""):
            if required:
                is_number = self.problem == "regression"
                allowed = "a number" if is_number else shown_labels(self.names)
                raise RowError(
                    "label.missing",
                    "found no label, allowed: {allowed}",
                    place=place,
                    allowed=allowed,
                )
            return None
        if self.problem == "regression":
            if (number := number_of(row.label)) is None:
                raise RowError(
                    "label.not_a_number",
                    "found {found!r}, allowed: a number{hint}",
                    place=place,
                    found=row.label,
                    hint=self.hint,
                )
            return number
        names = self.names_in(row)
        numbers = [label_number(name, self.names, place=place) for name in names]
        return frozenset(numbers) if several else numbers[0]

    def names_in(self, row: TextRow) -> list[str]:
        """Returns the names in a row's label: one, or for several labels none to many.

        Raises RowError: a list where there is one label, or an object.
        """
        found = row.label
        if row.unlabelled:
            return []
        if self.problem == "multi_label":
            parts = found.split(self.separator) if isinstance(found, str) else found
            if isinstance(parts, list):
                names = [self._name(row, part).strip() for part in parts]
                return [name for name in names if name]
        return [self._name(row, found)]

    def _name(self, row: TextRow, found: Any) -> str:
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, float) and found.is_integer():
            return str(int(found))  # Parquet's form of whole numbers when some are missing
        if isinstance(found, str | int | float):
            return str(found)
        raise RowError(
            "label.type", "found {found!r}, allowed: a label", place=self._place(row), found=found
        )

    def _place(self, row: TextRow) -> str:
        return f'{row.place}: column "{self.column}"'

    def with_names_of(self, rows: Sequence[TextRow]) -> Self:
        """Returns the labelling with the labels of a training set as its names.

        They are sorted, whole numbers by size. Raises UserError: there are fewer than two.
        """
        if self.problem == "regression":
            return self._replace(names=(self.column,))
        names: set[str] = set()
        for row in rows:
            with contextlib.suppress(RowError):  # `target` raises it again
                names.update(self.names_in(row))
        if len(names) < 2:
            raise too_few_labels(names, rows[0].place.rpartition(": ")[0], self.column)
        if all(is_whole(name.removeprefix("-")) for name in names):
            return self._replace(names=tuple(sorted(names, key=lambda name: (int(name), name))))
        return self._replace(names=tuple(sorted(names)))

    def weights(self, weighting: Weighting, targets: Iterable[Target]) -> tuple[float, ...] | None:
        """Returns the weight of an example of each label in the loss; None for 1.

        "balanced" → labelled / (labels × labelled with this one), so that every label has the same
        total weight, as scikit-learn's `compute_class_weight`. Weights by label are 1 for labels
        without one. `targets` come from the training set. Raises UserError: weights in a
        regression, or of an unknown label.
        """
        if weighting == "none":
            return None
        if self.problem == "regression":
            raise UserError(
                "label.weights_in_regression",
                'found weights for a regression, allowed: "none"',
                place="task.class_weights",
            )
        if isinstance(weighting, Mapping):
            for name in weighting:
                label_number(name, self.names, place="task.class_weights")
            return tuple(float(weighting.get(name, 1.0)) for name in self.names)
        counts: Counter[int] = Counter()
        for target in targets:
            counts.update(target if isinstance(target, frozenset) else [int(target or 0)])
        # A label of the model that this training set lacks has weight 1.
        return tuple(
            counts.total() / (len(counts) * counts[number]) if counts[number] else 1.0
            for number in range(len(self.names))
        )


def number_of(label: Any) -> float | None:
    """Returns the finite number that a label is or spells; None of others."""
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        return None
    # 1_000 is a number in Python, but not in tables.
    if isinstance(label, str) and "_" in label:
        return None
    try:
        found = float(label)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def find_problem(rows: Sequence[TextRow]) -> tuple[ProblemName, str, str]:
    """Returns the kind of problem that labels belong to, the reason, and the hint for strays.

    Lists → "multi_label". Numbers, at least one of them not whole → "regression", also if fewer
    than half of the labels are strays such as "n/a", which would make each number a class. Others →
    "single_label".
    """
    labels = [row.label for row in rows if not row.unlabelled]
    if any(isinstance(label, list) for label in labels):
        return "multi_label", "labels are lists", ""
    numbers = [number for label in labels if (number := number_of(label)) is not None]
    if 2 * len(numbers) > len(labels) and not all(map(float.is_integer, numbers)):
        hint = (
            f"; {len(numbers):,} of {len(labels):,} labels are numbers; if labels are names of "
            "classes, set finetune.task.problem=single_label"
        )
        return "regression", "labels are numbers, and not whole", hint
    whole = bool(labels) and len(numbers) == len(labels)
    return "single_label", "labels are whole numbers" if whole else "labels are names", ""


def shown_labels(names: Sequence[str]) -> list[str]:
    """Returns labels for a message: ``["negative", "positive"]``."""
    return [*names[:SHOWN], *(["…"] if names[SHOWN:] else [])]


def label_number(name: str, names: Sequence[str], *, place: str) -> int:
    """Returns the index of a label among the model's labels. Raises RowError if it is unknown."""
    try:
        return names.index(name)
    except ValueError:
        raise unknown_label(name, names, place=place) from None


def unknown_label(
    found: str, allowed: Sequence[str], *, place: str, hint: str | None = None
) -> RowError:
    """Returns the error for an unknown label. By default, the hint is the most similar label."""
    return RowError(
        "label.unknown",
        'found the label "{found}", allowed: {allowed}{hint}',
        place=place,
        found=found,
        allowed=shown_labels(allowed),
        hint=did_you_mean(found, allowed) if hint is None else hint,
    )


def too_few_labels(found: Collection[str], source: object, column: str | None = None) -> UserError:
    """Returns the error for a file with less than two different labels."""
    return UserError(
        "label.too_few",
        "found {found}, allowed: two or more different labels",
        place=f"{source}" if column is None else f'{source}: column "{column}"',
        found=sorted(found) or "no label",
    )
