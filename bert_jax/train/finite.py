"""Parameters with a NaN or an infinity in them are refused wherever they come from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError
from bert_jax.train.state import named


def refuse_non_finite(tree: Any, *, where: str) -> None:
    """Looks at every number on the devices that hold it; one number per array comes back.

    Args:
        tree: of arrays; all processes that hold parts of them must call.
        where: it comes from, for the message.

    Raises:
        UserError: naming the first array that is not finite.
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
