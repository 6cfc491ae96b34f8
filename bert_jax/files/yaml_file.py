"""YAML as configurations use it: plain values, and 1e-4 is a number."""

from __future__ import annotations

import re
from typing import Any

import yaml
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_text


def read_yaml(path: epath.PathLike) -> Any:
    """Returns the values in a YAML file, local or ``gs://``.

    Raises:
        UserError: no such file, not UTF-8, not YAML.
    """
    return parse_yaml(read_text(epath.Path(path)), str(path))


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-4 for text, since it has no dot. Here it is the number it looks like."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, source: str) -> Any:
    """Returns the values of a YAML document; messages name its ``source``.

    Raises:
        UserError: not YAML; names the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{source}{where}: not YAML ({problem})") from error


def dump_yaml(values: Any) -> str:
    """Returns plain values as YAML, keys in their order."""
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
