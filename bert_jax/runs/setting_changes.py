"""Compares the configuration of a resumed run with the stored one."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from etils import epath
from flax.traverse_util import flatten_dict

from bert_jax.errors import UserError


class SettingChange(NamedTuple):
    """A setting whose new value differs from the stored value."""

    key: str
    was: Any
    now: Any


def find_changes(held: Mapping[str, Any], asked: Mapping[str, Any]) -> list[SettingChange]:
    """Returns the nested settings that differ, ordered by key."""
    was, now = (flatten_dict(dict(settings), sep=".") for settings in (held, asked))
    return [
        SettingChange(key, was.get(key), now.get(key))
        for key in sorted(was.keys() | now.keys())
        if was.get(key) != now.get(key)
    ]


def refuse_other_settings(
    root: epath.Path,
    *,
    held: Mapping[str, Any],
    asked: Mapping[str, Any],
    free: Collection[str],
    with_flag: Collection[str] = (),
    what: str,
) -> None:
    """Raises UserError if new settings of a run or sweep differ from the stored settings.

    Args:
        root: run directory.
        held: stored settings.
        asked: new settings.
        free: dotted keys that may differ.
        with_flag: dotted keys that may differ with --allow-data-change.
        what: "run" or "sweep", for the message.
    """
    # Name the setting of a file before the hash of its rows.
    for change in sorted(find_changes(held, asked), key=_is_of_data):
        if change.key not in free:
            found, key = f"found {_plain(change.now)}, but the {what} in {root}", change.key
            message = f"{found} has {_plain(change.was)}. Use the same value or a new run_dir."
            if _is_of_data(change):
                message = f"other rows than in {root}. Restore the file, or use a new run_dir."
                key = key.replace("content.", "finetune.task: ")
            if change.key in with_flag:
                message += " --allow-data-change permits the new value."
            raise UserError("run.other_setting", message, place=key)


def _is_of_data(change: SettingChange) -> bool:
    """Returns whether both values are fingerprints of data, which tell a user nothing."""
    return all(re.fullmatch("[0-9a-f]{32}", str(value)) for value in (change.was, change.now))


def _plain(value: Any) -> Any:
    """Converts a list to text with brackets, so that messages show an empty list."""
    return str(value) if isinstance(value, list | tuple) else value
