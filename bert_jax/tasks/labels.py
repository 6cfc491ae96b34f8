"""Parses the labels of sequence classification and regression."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from bert_jax.data.tables import RowError
from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.files.read import is_whole
from bert_jax.model.section import ProblemName
from bert_jax.tasks.family import Record
from bert_jax.tasks.label_values import is_list_text, is_missing_text, label_parts

# Index in `Labelling.names`, set of indices (multi-label), number (regression), or None if the
# example is unlabelled.
Target: TypeAlias = int | frozenset[int] | float | None
Weighting: TypeAlias = Literal["none", "balanced"] | Mapping[str, float]

UNKNOWN: Final = -1  # label of a row without a label, as `datasets` writes it
_WHOLE_FLOAT: Final = re.compile(r"(-?\d+)\.0+")
_COMMA: Final = re.compile(r"-?\d+,\d+")
SHOWN: Final = 20  # maximum number of labels in a message


class TextRow(NamedTuple):
    """One example, with its unparsed label."""

    place: str  # location for error messages: "t.csv: line 7"
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
    """The labels of a task, and how to parse them."""

    problem: ProblemName
    names: tuple[str, ...]  # in the order of the logits; regression: its column
    column: str = ""  # column of the labels, for error messages
    separator: str = "|"  # separator of the labels in multi-label data
    threshold: float = 0.5  # multi-label: minimum probability to predict a label
    hint: str = ""  # appended to the error for a label that is not a number
    integers: bool = False  # whether the labels are whole numbers in the training set

    def spell(self, target: Target) -> str | list[str] | float | None:
        """Converts a target for a record: to a label, a sorted list of labels, a number or None."""
        if target is None:
            return None
        if isinstance(target, frozenset):
            return [self.names[number] for number in sorted(target)]
        if self.problem == "regression":
            return float(target)
        return self.names[int(target)]

    def target(self, row: TextRow, *, required: bool) -> Target:
        """Returns the target of a row's label.

        Raises RowError if the label is unknown, if it is not a number (regression), or if it is
        `required` and missing. In multi-label data, an empty set of labels is valid.
        """
        several, place = self.problem == "multi_label", self._place(row)
        # In multi-label data, "" is an empty set of labels.
        if row.unlabelled and not (several and row.label == ""):
            if required:
                is_number = self.problem == "regression"
                allowed = "a number" if is_number else shown_labels(self.names)
                raise RowError.wrong("label.missing", "no label", commas(allowed), place=place)
            return None
        if self.problem == "regression":
            if (number := number_of(row.label)) is None:
                raise RowError.wrong(
                    "label.not_a_number", f"{row.label!r}", f"a number{self.hint}", place=place
                )
            return number
        names = self.names_in(row)
        numbers = [label_number(name, self.names, place=place) for name in names]
        return frozenset(numbers) if several else numbers[0]

    def without_unknown(self, rows: Sequence[TextRow]) -> tuple[Sequence[TextRow], Counter[str]]:
        """Returns rows with None for each label -1 or ``nan``, and the numbers of these labels.

        GLUE and `datasets` write -1 for the hidden labels of a test set. If -1 is a label of the
        model, or in a regression one of several numbers, it stays. Programs write missing values
        as texts such as ``nan``, which stay if they are labels of the model.
        """
        known = {UNKNOWN} if str(UNKNOWN) in self.names else set[float]()
        if self.problem == "regression":
            known = {number for row in rows if (number := number_of(row.label)) is not None}
            known = known if known != {UNKNOWN} else set()
        missing: Counter[str] = Counter()
        kept: list[TextRow] = []
        for row in rows:
            is_unknown = number_of(row.label) == UNKNOWN and UNKNOWN not in known
            if is_unknown or (is_missing_text(row.label) and row.label not in self.names):
                missing[str(UNKNOWN) if is_unknown else row.label] += 1
                row = row._replace(label=None)
            kept.append(row)
        return kept, missing

    def names_in(self, row: TextRow) -> list[str]:
        """Returns the labels of a row, at most one unless the data are multi-label.

        Raises RowError if the label is an object, a list written as text, or a list in single-label
        data.
        """
        found = row.label
        if row.unlabelled:
            return []
        if isinstance(found, str) and found not in self.names and is_list_text(found):
            raise RowError(
                "label.list_text",
                f"found {found!r}, a list written as text. Write lists to a .jsonl or .parquet, "
                f"or a{self.separator}b with finetune.task.problem=multi_label.",
                place=self._place(row),
            )
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
            return str(int(found))  # Parquet stores whole numbers as floats if some are missing
        if isinstance(found, str) and found not in self.names:
            return canonical(found)
        if isinstance(found, str | int | float):
            return str(found)
        raise RowError.wrong(
            "label.kind", f"{found!r:.60}", "a text, a number, true, false", place=self._place(row)
        )

    def _place(self, row: TextRow) -> str:
        return f'{row.place}: column "{self.column}"'

    def with_names_of(self, rows: Sequence[TextRow], *, typed: bool) -> Self:
        """Returns a copy with the labels of a training set.

        Labels are sorted, integers by value. `typed` says whether the table distinguishes numbers
        from texts. Raises UserError if there are fewer than two labels, or if truth values are
        written as words and as numbers.
        """
        if self.problem == "regression":
            return self._replace(names=(self.column,))
        _refuse_vectors(rows, self._place(rows[0]))
        names: set[str] = set()
        refused: RowError | None = None
        for row in rows:
            try:
                names.update(self.names_in(row))
            except RowError as error:  # `target` raises the error later
                refused = refused or error
        _refuse_mixed_truth(names, self._place(rows[0]))
        if len(names) < 2:
            if refused is not None:
                raise refused
            raise too_few_labels(names, rows[0].place.rpartition(": ")[0], self.column)
        if all(is_whole(name.removeprefix("-")) for name in names):
            ordered = sorted(names, key=lambda name: (int(name), name))
            texts = typed and any(_has_text(row.label) for row in rows)
            integers = not texts and all(str(int(name)) == name for name in names)
            return self._replace(names=tuple(ordered), integers=integers)
        return self._replace(names=tuple(sorted(names)))

    def weights(self, weighting: Weighting, targets: Iterable[Target]) -> tuple[float, ...] | None:
        """Returns the weight of each label in the loss, or None if all weights are 1.

        "balanced" gives all labels the same total weight: examples / (labels × examples of the
        label), as in scikit-learn's `compute_class_weight`. A mapping may omit labels of weight 1.
        `targets` are the training targets. Raises UserError for a regression or an unknown label.
        """
        if weighting == "none":
            return None
        if self.problem == "regression":
            raise UserError(
                "label.weights_in_regression", "a regression has none", place="task.class_weights"
            )
        if isinstance(weighting, Mapping):
            for name in weighting:
                label_number(name, self.names, place="task.class_weights")
            return tuple(float(weighting.get(name, 1.0)) for name in self.names)
        counts: Counter[int] = Counter()
        for target in targets:
            counts.update(target if isinstance(target, frozenset) else [int(target or 0)])
        # A label without training examples has weight 1.
        return tuple(
            counts.total() / (len(counts) * counts[number]) if counts[number] else 1.0
            for number in range(len(self.names))
        )


def _refuse_vectors(rows: Sequence[TextRow], place: str) -> None:
    """Raises RowError if each label is a list with a 0 or 1 for every class: ``[1.0, 0.0, 1.0]``.

    Lists of names differ in length, or have other names.
    """
    lists = [row.label for row in rows if isinstance(row.label, list)]
    lengths = {len(each) for each in lists}
    are_bits = all(each in (0, 1) for found in lists for each in found)
    if lists and len(lengths) == 1 and max(lengths) > 1 and are_bits:
        example = commas([f"class{at}" for at, each in enumerate(lists[0]) if each])
        raise RowError(
            "label.vectors", f"found {commas(lists[0])}. Write names: {example}.", place=place
        )


def _refuse_mixed_truth(names: Collection[str], place: str) -> None:
    """Raises RowError if labels are both ``true`` and ``1``, which most programs take as equal."""
    words = [name for name in names if _truth(name) in ("true", "false")]
    numbers = [*filter(is_whole, names)]
    if words and numbers and len(words) + len(numbers) == len(names):
        raise RowError.wrong(
            "label.mixed_truth", commas(sorted(names)), "only words or only numbers", place=place
        )


def _has_text(label: Any) -> bool:
    return any(map(_has_text, label)) if isinstance(label, list) else isinstance(label, str)


def with_integers(records: Sequence[Record]) -> list[Record]:
    """Returns records with labels as numbers: ``{"prediction": "1"}`` → ``{"prediction": 1}``."""
    keys = ("label", "prediction", "probabilities")
    return [record | {key: _integers(record.get(key)) for key in keys} for record in records]


def _integers(found: Any) -> Any:
    if isinstance(found, dict):
        return {int(name): value for name, value in found.items()}
    if isinstance(found, list):
        return [_integers(each) for each in found]
    return int(found) if isinstance(found, str) else found


def number_of(label: Any) -> float | None:
    """Converts a label to a finite number. Returns None if it is not one."""
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        return None
    # `float` accepts "1_000", but in a table it is not a number.
    if isinstance(label, str) and "_" in label:
        return None
    try:
        found = float(label)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def find_problem(rows: Sequence[TextRow]) -> tuple[ProblemName, str, str]:
    """Returns the problem, the reason, and a hint for errors about labels that are not numbers.

    If any label is a list, the problem is "multi_label". If more than half of the labels are
    numbers and one is fractional, it is "regression": a stray "n/a" must not turn each number into
    a class. Otherwise it is "single_label". Raises RowError if most labels have a decimal comma, or
    if a label consists of others: ``joy,fear``.
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
        return "regression", "labels are numbers with fractions", hint
    decimals = [row for row in rows if _COMMA.fullmatch(str(row.label))]
    if labels and 2 * len(decimals) > len(labels):
        raise RowError(
            "label.decimal_comma",
            f"found {decimals[0].label}. Write a point, or set finetune.task.problem=single_label.",
            place=decimals[0].place,
        )
    _refuse_several(rows)
    whole = bool(labels) and len(numbers) == len(labels)
    return "single_label", "labels are whole numbers" if whole else "labels are names", ""


def _refuse_several(rows: Sequence[TextRow]) -> None:
    names = {row.label for row in rows if isinstance(row.label, str)}
    several = {name: found for name in names if (found := label_parts(name, names))}
    for row in rows:
        if isinstance(row.label, str) and row.label in several:
            separator, parts = several[row.label]
            raise RowError(
                "label.several",
                f'found "{row.label}" beside {commas(parts)}. Set finetune.task.problem: '
                f'single_label, or multi_label with label_separator "{separator}".',
                place=row.place,
            )


def shown_labels(names: Sequence[str]) -> list[str]:
    """Truncates a list of labels for a message."""
    return [*names[:SHOWN], *(["…"] if names[SHOWN:] else [])]


def canonical(label: str) -> str:
    """Returns whole numbers without the fraction that pandas writes: ``"1.0"`` → ``"1"``."""
    whole = _WHOLE_FLOAT.fullmatch(label)
    return label if whole is None else whole[1]


def label_number(name: str, names: Sequence[str], *, place: str) -> int:
    """Returns the index of a label in `names`.

    Programs spell numbers and truth values in several ways: ``1`` also finds ``1.0``, and ``true``
    finds ``True``. Raises RowError if the label is not there.
    """
    if name in names:
        return names.index(name)
    for spelling in (canonical, _truth):
        found = [at for at, each in enumerate(names) if spelling(each) == spelling(name)]
        if len(found) == 1:
            return found[0]
    raise unknown_label(name, names, place=place)


def _truth(label: str) -> str:
    return label.lower() if label.lower() in ("true", "false") else label


def unknown_label(
    found: str, allowed: Sequence[str], *, place: str, hint: str | None = None
) -> RowError:
    """Returns the error for an unknown label. The default hint is the most similar label."""
    return RowError(
        "label.unknown",
        f'found the label "{found}", allowed: '
        f"{commas(shown_labels(allowed))}{_hint(found, allowed) if hint is None else hint}",
        place=place,
    )


def _hint(found: str, allowed: Sequence[str]) -> str:
    if number_of(found) == UNKNOWN:
        return "; in tables of datasets, -1 is a missing label"
    if is_missing_text(found):
        return "; if it marks a missing label, remove the row"
    return did_you_mean(found, allowed)


def too_few_labels(found: Collection[str], source: object, column: str | None = None) -> UserError:
    """Returns the error for a file with fewer than two different labels."""
    return UserError(
        "label.too_few",
        f"found {commas(sorted(found) or 'no label')}, allowed: two or more different labels",
        place=f"{source}" if column is None else f'{source}: column "{column}"',
    )
