"""What a run has left to look at."""

from __future__ import annotations

import re
from typing import Final

from etils import epath

_DUMP: Final = re.compile(r"bad_step_(\d+)")


def newest_dump(run_dir: epath.PathLike) -> str | None:
    """Returns the dump of a run's last bad step, see `bert_jax.train.dump`; None if there is none.

    Nor if it cannot be looked for: whoever asks has something more important to say.
    """
    try:
        found = [
            (int(match[1]), path)
            for path in epath.Path(run_dir).iterdir()
            if (match := _DUMP.fullmatch(path.name))
        ]
    except Exception:  # (of a bucket, anything)
        return None
    return str(max(found)[1]) if found else None
