"""Loads functions of the user that a setting names: the only code that a configuration can run.

A configuration by someone else must not run shell commands. So the module of a function must be the
user's own. Python's standard library, this package and installed packages are forbidden, except
`jieba` and the modules in ``BERT_JAX_TRUSTED_MODULES`` (names separated by commas).
"""

import functools
import importlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bert_jax.errors import UserError, did_you_mean, first_line

TRUSTED: Final = "BERT_JAX_TRUSTED_MODULES"
_DOCUMENTED: Final = ("jieba",)
_SPELLING: Final = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")
_FORBIDDEN: Final = frozenset((*sys.stdlib_module_names, *sys.builtin_module_names, "__main__"))


@functools.cache
def load_function(path: str, *, key: str, checked: bool = False) -> Callable[..., Any]:
    """Imports the function ``"module:function"``, which is the value of the setting `key`.

    `checked`: another process has checked the module. On the workers of a cluster, the user's
    module is an installed package, so the check would fail. Raises UserError if the value has
    another form, the module does not belong to the user or cannot be imported, or the function is
    missing.
    """
    spelled = _SPELLING.fullmatch(path)
    if spelled is None:
        raise UserError.wrong(
            "function.spelling", f'"{path:.60}"', "module:function, such as jieba:lcut", place=key
        )
    module_name, name = spelled.groups()
    if not checked:
        check_module(module_name, key=key, found=path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the code of a module may raise any error
        raise UserError(
            "function.import_failed",
            f'found "{path}", but {module_name} cannot be imported ({first_line(error)})',
            place=key,
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if callable(value)]
        raise UserError(
            "function.unknown",
            f'found "{path}", but it has no such function{did_you_mean(name, names)}',
            place=key,
        )
    if not checked:  # the user's module may have imported the function from another module
        check_module(getattr(function, "__module__", None) or module_name, key=key, found=path)
    return function


def check_module(name: str, *, key: str, found: str, allowed: tuple[str, ...] = ()) -> None:
    """Raises UserError if a module does not belong to the user. Does not import the module.

    `found` is the value of the setting `key`. `allowed` names more allowed packages.
    """
    top = name.partition(".")[0]
    if top in (*_trusted(), *allowed):
        return
    if top in _FORBIDDEN:
        raise UserError(
            "function.standard_library",
            f'found "{found:.60}" of the standard library ({top}), allowed: your own module',
            place=key,
        )
    if top == __name__.partition(".")[0] or _is_installed(top):
        raise UserError(
            "function.installed_package",
            f'"{found:.60}" is of an installed package. Use your own, or add {top} to {TRUSTED}.',
            place=key,
        )


def only_trusted(path: str | None, *, key: str, source: object) -> None:
    """Raises UserError if the run directory `source` names a function of an untrusted module.

    Somebody else may have written the run directory. `path` is ``"module:function"`` or None.
    """
    top = (path or "").partition(":")[0].partition(".")[0]
    if path is not None and top not in _trusted():
        raise UserError(
            "function.untrusted",
            f'found "{path:.60}", which would run code. To trust it: {TRUSTED}={top:.60}.',
            place=f"{source}: {key}",
        )


def _trusted() -> list[str]:
    return [*_DOCUMENTED, *(each.strip() for each in os.environ.get(TRUSTED, "").split(","))]


def _is_installed(name: str) -> bool:
    """Returns whether a package or module is in a directory for installed packages."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False  # the import will raise the error
    if spec is None:
        return False
    places = [spec.origin, *(spec.submodule_search_locations or ())]
    roots = [sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib", "platstdlib")]
    roots += [*site.getsitepackages(), site.getusersitepackages()]
    return any(
        Path(place).resolve().is_relative_to(Path(root).resolve())
        for place in places
        if place is not None
        for root in roots
    )
