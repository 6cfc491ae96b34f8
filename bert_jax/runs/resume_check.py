"""What goes on under other settings is neither the one run nor the other."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from etils import epath
from flax.traverse_util import flatten_dict

from bert_jax.errors import UserError


def refuse_other_settings(
    root: epath.Path,
    *,
    held: dict[str, Any],
    asked: dict[str, Any],
    free: Collection[str],
    what: str,
) -> None:
    """Refuses to go on with what a directory holds.

    Args:
        root: the directory.
        held: the nested settings it was made with.
        asked: those of now.
        free: dotted keys that may differ.
        what: it holds, for the message.

    Raises:
        UserError: naming the first key that differs, in the order of their names.
    """
    was, now = flatten_dict(held, sep="."), flatten_dict(asked, sep=".")
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key) and key not in free:
            raise UserError(
                f"{key}: found {now.get(key)}, but {root} holds a {what} with {was.get(key)}; "
                f"allowed: the same, or a new run_dir"
            )
