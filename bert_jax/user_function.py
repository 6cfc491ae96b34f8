"""Functions of the user's own, named in a setting."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError, did_you_mean


@functools.cache
def load_function(path: str, *, key: str) -> Callable[..., Any]:
    """Imports ``"module:function"``.

    Args:
        path: as written in the configuration.
        key: of the setting, for messages.

    Raises:
        UserError: it is not spelled so, there is no such module or function.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise UserError(f'{key}: found "{path}", allowed: module:function, such as jieba:lcut')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f'{key}: found "{path}", but {module_name} cannot be imported ({error})'
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if callable(value)]
        raise UserError(
            f'{key}: found "{path}", but {module_name} has no function "{name}"'
            f"{did_you_mean(name, names)}"
        )
    return function
