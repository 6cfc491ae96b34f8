"""How far a run has come in its data, in a form that survives another number of machines."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.errors import UserError
from bert_jax.section import Section


class Position(Section):
    """Where a phase stands in its data: 25600 rows read, of this dataset, seed, masking.

    Attributes:
        example_index: rows that the phase has read so far, on all hosts together. The number of
            hosts, of workers and of devices does not enter.
        fingerprint: what the order and the rows depend on, by name: dataset, seed, row length,
            masking. A position is good for the same fingerprint only.
    """

    example_index: int
    fingerprint: dict[str, str | int | float]

    def step(self, *, batch_size: int, fingerprint: Mapping[str, str | int | float]) -> int:
        """Returns the number of batches of ``batch_size`` rows that lie before this position.

        Raises:
            UserError: if ``fingerprint`` differs from the position's own (the first field that does
            is
                named), or if the position is not a whole number of batches.
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
                f"batch_size: found {batch_size}, but the checkpoint stands after "
                f"{self.example_index} rows; allowed: a batch size that divides them"
            )
        return step


def _say(value: object) -> str:
    return "nothing" if value is None else f'"{value}"' if isinstance(value, str) else f"{value}"
