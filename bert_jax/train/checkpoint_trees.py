"""States as checkpoints hold them: nested dicts of tensors with names, compared before a read."""

from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from bert_jax.errors import UserError
from bert_jax.train.state import TrainState, named


def optimizer_tree(state: TrainState) -> dict[str, Any]:
    """Returns what the item "optimizer" holds: everything of a state but its parameters."""
    return {"step": state.step, "rng": state.rng, "state": state.opt_state}


def with_optimizer(state: TrainState, saved: dict[str, Any]) -> TrainState:
    """Returns a state, abstract but for its parameters, with what `optimizer_tree` returned."""
    return state._replace(
        step=saved["step"],
        rng=saved["rng"],
        opt_state=saved["state"],
        healthy=jax.device_put(jnp.ones((), jnp.bool_), state.healthy.sharding),
    )


def check_tensors(found: Any, wanted: Any, *, where: epath.Path) -> None:
    """Compares names, shapes and dtypes: Orbax casts dtypes silently and reports shapes late.

    `found` has the checkpoint's metadata, `wanted` arrays or their shapes, both in nested dicts.
    Raises UserError: a tensor is missing, unexpected, or of another shape or dtype.
    """
    have_by_name, want_by_name = _by_name(found), _by_name(wanted)
    for name in sorted(want_by_name.keys() | have_by_name.keys()):
        if name not in have_by_name:
            raise UserError(f"{where}: tensor {name} is missing; the model here needs it")
        if name not in want_by_name:
            raise UserError(f"{where}: tensor {name} is not part of the model here")
        have, want = have_by_name[name], want_by_name[name]
        if tuple(have.shape) != tuple(want.shape) or have.dtype != want.dtype:
            raise UserError(
                f"{where}: tensor {name} found {have.dtype}{list(have.shape)}, the model here "
                f"needs {want.dtype}{list(want.shape)}"
            )


def refuse_non_finite(tree: Any, *, where: str) -> None:
    """Looks at every number on the devices that hold it; one number per array comes back.

    All processes that hold parts of the arrays must call; `where` they come from is for the
    message. Raises UserError: naming the first array that is not finite.
    """
    leaves = [(n, leaf) for n, leaf in named(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    finite = jax.device_get(_all_finite([leaf for _, leaf in leaves]))
    for (name, leaf), sound in zip(leaves, finite, strict=True):
        if not sound:
            raise UserError(
                f"{where}: tensor {name}, {leaf.dtype}{list(leaf.shape)}, holds NaN or infinity; "
                f"allowed: finite numbers"
            )


@jax.jit
def _all_finite(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.isfinite(leaf).all() for leaf in leaves]


def _parts(path: tuple[Any, ...]) -> list[str]:
    return [jax.tree_util.keystr((entry,), simple=True) for entry in path]


def _by_name(tree: Any) -> dict[str, Any]:
    """Names every leaf by its path: ``{"layers/output/kernel": leaf}``."""
    leaves = jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda node: hasattr(node, "shape") and hasattr(node, "dtype")
    )
    return {"/".join(_parts(path)): leaf for path, leaf in leaves}
