"""Where a path may lead: to this machine, or to storage whose client is installed."""

import importlib.util
from typing import Final

CLIENTS: Final = {"s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
"""The package of each scheme but ``gs``."""

MODELS: Final = "hf://"
"""Before ``owner/name`` of a model on a hub."""

DATASETS: Final = f"{MODELS}datasets/"
"""Before ``owner/name`` of a dataset on a hub."""

_LOCAL: Final = "allowed: a local path"


def check_place(path: str, *, hub: str = "") -> None:
    """Refuses an address that no path may be.

    ``gs://bucket/run`` is fine, and so are ``s3://`` and ``az://`` if their clients are installed.
    `hub` is the beginning of a hub's names that are fine too: `MODELS` or `DATASETS`.
    Raises ValueError that says what is allowed.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or (hub and path.startswith(hub)):
        return
    allowed = f"{_LOCAL} or gs://BUCKET/PATH"
    if hub:
        allowed = f"{_LOCAL}, gs://BUCKET/PATH or {hub}OWNER/NAME"
    if scheme == "gs" and rest.partition("/")[0]:
        return
    if scheme in CLIENTS and scheme != "hf":
        client = CLIENTS[scheme]
        if importlib.util.find_spec(client) is not None:
            return
        allowed += f"; {scheme}:// needs {client}: pip install {client}"
    elif scheme == "file" and rest:
        allowed += f"; did you mean {rest}?"
    raise ValueError(allowed)


def check_local_place(path: str) -> None:
    """Refuses any address. Raises ValueError that says what is allowed."""
    if "://" in path:
        raise ValueError(_LOCAL)
