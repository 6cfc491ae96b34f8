"""Checks paths: local paths, URLs of buckets, and names on a hub."""

import importlib.util
from typing import Final

from bert_jax.errors import SettingError

CLIENTS: Final = {"s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
"""Client library of each scheme, except ``gs``."""

MODELS: Final = "hf://"
"""Prefix of a model's name on a hub."""

DATASETS: Final = f"{MODELS}datasets/"
"""Prefix of a dataset's name on a hub."""

_LOCAL: Final = "a local path"


def check_place(path: str, *, hub: str = "") -> None:
    """Raises SettingError for an unsupported URL.

    Local paths and ``gs://bucket/run`` are supported. ``s3://`` and ``az://`` are supported if
    their client libraries are installed. Names on a hub are supported if they begin with `hub`,
    which is `MODELS` or `DATASETS`.
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
    raise SettingError.wrong("path.address", f'"{path:.200}"', allowed)
