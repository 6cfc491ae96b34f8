"""The data position of a checkpoint, independent of the number of hosts, workers and devices."""

from __future__ import annotations

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

    def step(self, *, batch_size: int, fingerprint: Mapping[str, Value]) -> int:
        """Returns the number of batches of ``batch_size`` rows before this position.

        Raises:
            UserError: ``fingerprint`` differs (names the first field that does), or the position is
                not a whole number of batches.
        """
        for name, (then, now) in self.differences(fingerprint).items():
            raise UserError(
                f"{name}: found {_say(now)}, but the checkpoint's data position was made with "
                f"{_say(then)}; allowed: the same value, a new run that starts from the "
                "checkpoint's parameters, or --allow-data-change"
            )
        step, rest = divmod(self.example_index, batch_size)
        if rest:
            raise UserError(
                f"batch_size: found {batch_size}, but the checkpoint was written after "
                f"{self.example_index} rows; allowed: a batch size that divides them"
            )
        return step

    def differences(self, fingerprint: Mapping[str, Value]) -> dict[str, tuple[object, object]]:
        """Returns in what a fingerprint differs from this position's: name → (then, now)."""
        return {
            name: (self.fingerprint.get(name), fingerprint.get(name))
            for name in sorted({*self.fingerprint, *fingerprint})
            if self.fingerprint.get(name) != fingerprint.get(name)
        }

    def moved_to(
        self, fingerprint: Mapping[str, Value], *, batch_size: int, order: Collection[str]
    ) -> DataPosition:
        """Returns the position from which to go on in changed data.

        The next row of the same order; the first row of all if it is another order. Rows up to a
        whole number of batches are passed over; ``order`` names that on which the order of the rows
        depends.
        """
        rows = -(-self.example_index // batch_size) * batch_size
        if any(name in order for name in self.differences(fingerprint)):
            rows = 0
        return DataPosition(example_index=rows, fingerprint=dict(fingerprint))


def describe_differences(differences: Mapping[str, tuple[object, object]]) -> str:
    """Returns what differs in words: ``seed was 3, is 4``."""
    return "; ".join(
        f"{name} was {_say(then)}, is {_say(now)}" for name, (then, now) in differences.items()
    )


def _say(value: object) -> str:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else f"{value}"
