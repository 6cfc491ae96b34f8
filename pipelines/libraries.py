"""The libraries of the extra ``data``, which only the preparation of text needs."""

import importlib.util
from typing import Final

from bert_jax.errors import UserError, not_installed

_LIBRARIES: Final = ("tensorflow-datasets", "mwparserfromhell", "sentencex", "rensa")


def need_data_libraries(verb: str) -> None:
    """Raises UserError, before any text is read, that names the libraries not installed."""
    modules = {name: name.replace("-", "_") for name in _LIBRARIES}
    missing = [name for name, module in modules.items() if not importlib.util.find_spec(module)]
    if missing:
        raise UserError(not_installed(", ".join(missing), verb, extra="data"))
