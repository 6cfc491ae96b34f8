"""Functions of the user's own, named in a setting: the only code that a configuration can run.

So that a configuration from elsewhere cannot run a shell command, the module must be one of the
user's own: not of Python's standard library, of this package or of an installed one. `jieba` is
documented and allowed; ``BERT_JAX_TRUSTED_MODULES`` (names, comma-separated) allows others.
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
    """Imports ``"module:function"``.

    `path` is as written in the configuration, `key` the setting's, for messages. With `checked`
    another process has made sure that the module is the user's own: on the workers of a cluster it
    is an installed package. Raises UserError if it is not spelled so, the module is not the user's
    own, cannot be imported or has no such function.
    """
    spelled = _SPELLING.fullmatch(path)
    if spelled is None:
        raise UserError(f'{key}: found "{path:.60}", allowed: module:function, such as jieba:lcut')
    module_name, name = spelled.groups()
    if not checked:
        check_module(module_name, key=key, found=path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module's own code may raise anything
        raise UserError(
            f'{key}: found "{path}", but {module_name} cannot be imported ({first_line(error)})'
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [each for each, value in vars(module).items() if callable(value)]
        raise UserError(
            f'{key}: found "{path}", but {module_name} has no function "{name}"'
            f"{did_you_mean(name, names)}"
        )
    if not checked:  # what a module of the user's has merely imported is not its own
        check_module(getattr(function, "__module__", None) or module_name, key=key, found=path)
    return function


def check_module(name: str, *, key: str, found: str, allowed: tuple[str, ...] = ()) -> None:
    """Makes sure that a module that a setting names is the user's own; imports nothing.

    `name` is the module's, with its packages; the setting `key` says `found`, and may name
    installed packages that are `allowed` besides. Raises UserError if it is not.
    """
    top = name.partition(".")[0]
    if top in (*_trusted(), *allowed):
        return
    if top in _FORBIDDEN:
        owner = "Python's standard library"
    elif top == __name__.partition(".")[0] or _is_installed(top):
        owner = "an installed package"
    else:
        return
    hint = "" if top in _FORBIDDEN else f", or {top} in {TRUSTED}"
    raise UserError(
        f'{key}: found "{found:.60}", but {top} belongs to {owner}; '
        f"allowed: a module of your own{hint}"
    )


def only_trusted(path: str | None, *, key: str, source: object) -> None:
    """Refuses a function that a run directory names, which may come from anybody.

    Its module is allowed if it is documented, or trusted by name in the environment. The path is as
    `load_function` takes it, None for none; `source` is the run directory. Raises UserError if it
    is neither.
    """
    top = (path or "").partition(":")[0].partition(".")[0]
    if path is not None and top not in _trusted():
        raise UserError(
            f'{source}: {key}: found "{path:.60}", which would run code; if you trust that module, '
            f"say so: {TRUSTED}={top:.60}"
        )


def _trusted() -> list[str]:
    """Returns the modules that are documented, or trusted by name in the environment."""
    return [*_DOCUMENTED, *(each.strip() for each in os.environ.get(TRUSTED, "").split(","))]


def _is_installed(name: str) -> bool:
    """Whether a package or module lies where installers put them."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False  # importing it will say why
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
