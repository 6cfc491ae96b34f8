"""The data position of a checkpoint, independent of the number of hosts, workers and devices."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from bert_jax.errors import UserError
from bert_jax.section import Section

Value: TypeAlias = str | int | float


class DataPosition(Section):
    """How far a phase has read its data.

    Attributes:
        example_index: rows that the phase has read so far, on all hosts together.
        fingerprint: what order and rows depend on, by name: dataset, seed, row length, masking. A
            position is valid only for an equal fingerprint.
    """

    example_index: int
    fingerprint: dict[str, Value]

    def differences(self, fingerprint: Mapping[str, Value]) -> dict[str, tuple[object, object]]:
        """Returns the differences from another fingerprint: name → (this value, the other)."""
        return {
            name: (self.fingerprint.get(name), fingerprint.get(name))
            for name in sorted({*self.fingerprint, *fingerprint})
            if self.fingerprint.get(name) != fingerprint.get(name)
        }


class PositionedBatches:
    """Batches whose position in their data a checkpoint keeps."""

    def __init__(
        self, fingerprint: dict[str, Value], *, batch_size: int, order: Collection[str]
    ) -> None:
        """Takes what order and rows depend on; `order` names the part that the order depends on."""
        self._fingerprint, self._order = fingerprint, order
        self.batch_size = batch_size  # rows of a batch, over all hosts

    def position(self, step: int) -> DataPosition:
        """Returns the data position after ``step`` batches."""
        return DataPosition(example_index=step * self.batch_size, fingerprint=self._fingerprint)

    def check(self, position: DataPosition) -> int:
        """Returns the step of a data position: the ``first_step`` to resume with.

        The batch size may have changed if the new one divides the rows read so far. Raises
        UserError: the fingerprints differ (names the first such field), or the position is not a
        whole number of batches.
        """
        for name, (then, now) in position.differences(self._fingerprint).items():
            raise UserError(
                "resume.data_changed",
                "found {found}, but the checkpoint's data position was made with {expected}. Use "
                "{expected}, start a new run from the checkpoint's parameters, or pass "
                "--allow-data-change.",
                place=name,
                found=_shown(now),
                expected=_shown(then),
            )
        step, rest = divmod(position.example_index, self.batch_size)
        if rest:
            raise UserError(
                "resume.batch_size",
                "found {found}, but the checkpoint was saved after {rows} rows. Use a batch size "
                "that divides {rows}.",
                place="batch_size",
                found=self.batch_size,
                rows=position.example_index,
            )
        return step

    def go_on(self, position: DataPosition) -> DataPosition:
        """Returns the position in this data at which to resume from a position in other data.

        The next row of the same order, after a whole number of batches; the first row of all if the
        order differs.
        """
        rows = -(-position.example_index // self.batch_size) * self.batch_size
        if any(name in self._order for name in position.differences(self._fingerprint)):
            rows = 0
        return DataPosition(example_index=rows, fingerprint=self._fingerprint)


def describe_differences(differences: Mapping[str, tuple[object, object]]) -> str:
    """Returns the differences in words: ``seed was 3, is 4``."""
    return "; ".join(
        f"{name} was {_shown(then)}, is {_shown(now)}" for name, (then, now) in differences.items()
    )


def _shown(value: object) -> str:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else f"{value}"
