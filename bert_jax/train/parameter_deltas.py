"""Parameters that a checkpoint stores as sums, see `DELTAS`."""

from collections.abc import Mapping
from typing import Any

from bert_jax.task import DELTAS, Params


def abstract_deltas(deltas: Mapping[str, Any], abstract: Params) -> Params:
    """Returns the abstract parameters at the paths of `deltas`, whose leaves are not read."""
    return {
        name: abstract_deltas(below, abstract[name])
        if isinstance(below, Mapping)
        else abstract[name]
        for name, below in deltas.items()
    }


def with_deltas(params: Params) -> Params:
    """Returns the parameters with their `DELTAS` added, and without this part.

    ``{"word": w, "norm": n, "deltas": {"word": d}} -> {"word": w + d, "norm": n}``

    Every process must call it.
    """
    if DELTAS not in params:
        return params
    deltas = params[DELTAS]
    return _added({part: below for part, below in params.items() if part != DELTAS}, deltas)


def _added(params: Params, deltas: Params) -> Params:
    sums = {
        name: _added(params[name], below) if isinstance(below, dict) else params[name] + below
        for name, below in deltas.items()
    }
    return params | sums
