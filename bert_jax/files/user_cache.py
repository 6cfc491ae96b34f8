"""Where things are kept that can be made again."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """Returns ``$XDG_CACHE_HOME/bert_jax/NAME``, or the same in ``~/.cache``; it need not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "bert_jax" / name
