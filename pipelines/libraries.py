"""The libraries of the extra ``data``, which only the preparation of text needs."""

import importlib.util
from typing import Final

from bert_jax.errors import UserError, not_installed

_EXTRA: Final = "data"
_MODULES: Final = {
    "tensorflow_datasets": "tensorflow-datasets",
    "mwparserfromhell": "mwparserfromhell",
    "sentencex": "sentencex",
    "rensa": "rensa",
}


def need_data_libraries(verb: str) -> None:
    """Refuses to prepare text without the libraries of the extra, before any text is read.

    Raises UserError: names the libraries that are not installed.
    """
    missing = [name for module, name in _MODULES.items() if not _is_there(module)]
    if missing:
        raise UserError(not_installed(", ".join(missing), verb, extra=_EXTRA))


def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
