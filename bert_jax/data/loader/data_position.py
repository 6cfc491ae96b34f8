"""The data position of a checkpoint. It does not depend on hosts, workers or devices."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

from bert_jax.errors import UserError
from bert_jax.section import Section

Value: TypeAlias = str | int | float


class DataPosition(Section):
    """How far a phase has read its data.

    Attributes:
        example_index: number of rows read in the phase, over all hosts.
        fingerprint: values by name that determine the rows and their order: dataset, seed, row
            length, masking. A position is valid only for an equal fingerprint.
    """

    example_index: int
    fingerprint: dict[str, Value]

    def differences(self, fingerprint: Mapping[str, Value]) -> dict[str, tuple[object, object]]:
        """Returns the values that differ from another fingerprint: name → (own, other)."""
        return {
            name: (self.fingerprint.get(name), fingerprint.get(name))
            for name in sorted({*self.fingerprint, *fingerprint})
            if self.fingerprint.get(name) != fingerprint.get(name)
        }


class BatchSizes(NamedTuple):
    """The number of rows of each batch of a phase, over all hosts."""

    final: int  # rows of each batch after the ramp
    ramp: tuple[tuple[int, int], ...] = ()  # stages before: (number of batches, rows of each)

    def rows(self, batch: int) -> range:
        """Returns the rows of a batch: with 2 batches of 4 rows, then 8, batch 2 has rows 8–15."""
        start = 0
        for batches, size in self.ramp:
            if batch < batches:
                return range(start + batch * size, start + (batch + 1) * size)
            start, batch = start + batches * size, batch - batches
        return range(start + batch * self.final, start + (batch + 1) * self.final)

    def batches(self, rows: int) -> tuple[int, int]:
        """Returns the number of whole batches in the first rows, and the number of rows left."""
        whole = 0
        for batches, size in self.ramp:
            if rows < batches * size:
                return whole + rows // size, rows % size
            whole, rows = whole + batches, rows - batches * size
        return whole + rows // self.final, rows % self.final


class PositionedBatches:
    """Batches whose data position is saved with every checkpoint."""

    def __init__(
        self,
        fingerprint: dict[str, Value],
        *,
        batch_size: int,
        ramp: tuple[tuple[int, int], ...] = (),
        order: Collection[str],
    ) -> None:
        """Creates the batches of a fingerprint.

        Args:
            fingerprint: values that determine the rows and their order.
            batch_size: rows of a batch, over all hosts.
            ramp: stages before, see `BatchSizes`.
            order: names of the values that determine the order.
        """
        self._fingerprint, self._order = fingerprint, order
        self.batch_size, self.sizes = batch_size, BatchSizes(batch_size, ramp)

    def position(self, step: int) -> DataPosition:
        """Returns the data position after ``step`` batches."""
        return DataPosition(
            example_index=self.sizes.rows(step).start, fingerprint=self._fingerprint
        )

    def check(self, position: DataPosition) -> int:
        """Returns the step at which training resumes from a data position.

        A new batch size must divide the number of rows read. Raises UserError for the first value
        of the fingerprint that differs, or if the position is not a whole number of batches.
        """
        for name, (then, now) in position.differences(self._fingerprint).items():
            raise UserError(
                "resume.data_changed",
                f"found {_shown(now)}, but {_shown(then)} before. Use it, or --allow-data-change.",
                place=name,
            )
        step, rest = self.sizes.batches(position.example_index)
        if rest:
            raise UserError(
                "resume.batch_size",
                f"found {self.batch_size}, allowed: a divisor of {position.example_index} rows",
                place="batch_size",
            )
        return step

    def resume_position(self, position: DataPosition) -> DataPosition:
        """Returns the position in this data at which a run on other data resumes.

        If the order of rows is unchanged, rounds the position up to whole batches. Otherwise
        returns the first row.
        """
        batches, rest = self.sizes.batches(position.example_index)
        rows = self.sizes.rows(batches + (rest > 0)).start
        if any(name in self._order for name in position.differences(self._fingerprint)):
            rows = 0
        return DataPosition(example_index=rows, fingerprint=self._fingerprint)


def describe_differences(differences: Mapping[str, tuple[object, object]]) -> str:
    """Returns differences as text: ``seed was 3, is 4``."""
    return "; ".join(
        f"{name} was {_shown(then)}, is {_shown(now)}" for name, (then, now) in differences.items()
    )


def _shown(value: object) -> object:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else value
