"""Rows at a time, as a user asks for them."""

from bert_jax.errors import UserError


def check_batch_size(rows: int | None) -> None:
    """Checks ``--batch-size`` before anything is opened; None is the verb's own.

    ``check_batch_size(0)`` raises ``UserError("--batch-size: found 0, allowed: 1 or more")``.
    """
    if rows is not None and rows < 1:
        raise UserError(f"--batch-size: found {rows:,}, allowed: 1 or more")
