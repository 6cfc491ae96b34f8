"""The data position of a checkpoint, independent of the number of hosts, workers and devices."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.errors import UserError
from bert_jax.section import Section


class DataPosition(Section):
    """How far a phase has read its data.

    Attributes:
        example_index: rows that the phase has read so far, on all hosts together.
        fingerprint: what order and rows depend on, by name: dataset, seed, row length, masking. A
            position is valid only for an equal fingerprint.
    """

    example_index: int
    fingerprint: dict[str, str | int | float]

    def step(self, *, batch_size: int, fingerprint: Mapping[str, str | int | float]) -> int:
        """Returns the number of batches of ``batch_size`` rows before this position.

        Raises:
            UserError: ``fingerprint`` differs (names the first field that does), or the position is
                not a whole number of batches.
        """
        for name in sorted({*self.fingerprint, *fingerprint}):
            then, now = self.fingerprint.get(name), fingerprint.get(name)
            if then != now:
                raise UserError(
                    f"{name}: found {_say(now)}, but the checkpoint's data position was made with "
                    f"{_say(then)}; allowed: the same value, or a new run that starts from the "
                    "checkpoint's parameters"
                )
        step, rest = divmod(self.example_index, batch_size)
        if rest:
            raise UserError(
                f"batch_size: found {batch_size}, but the checkpoint was written after "
                f"{self.example_index} rows; allowed: a batch size that divides them"
            )
        return step


def _say(value: object) -> str:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else f"{value}"
