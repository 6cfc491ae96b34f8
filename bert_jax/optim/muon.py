"""Muon: momentum whose matrices are orthogonalized, for the matrices of the layers."""

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax

from bert_jax.parallel.sharding_rules import LogicalAxes, constrain, parts_in_use, trained_spec

MOMENTUM: Final = 0.95  # modded-nanogpt's
RMS: Final = 0.2  # root mean square of an update: AdamW's by arXiv 2502.16982, section 2.2

# Without momentum, optax's transformation is its Newton-Schulz iteration of each matrix.
_NEWTON_SCHULZ: Final = optax.contrib.scale_by_muon(
    beta=0.0,
    nesterov=False,
    weight_dimension_numbers=optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2),
)


def is_matrix(names: LogicalAxes) -> bool:
    """Returns whether a parameter is a stack of one matrix per layer, by its logical axes."""
    return len(names) == 3 and names[0] == "layers" and names[-1] != "head_dim"  # a bias's last


def scale_by_muon(axes: Mapping[tuple[str, ...], LogicalAxes]) -> optax.GradientTransformation:
    """Returns Nesterov momentum, orthogonalized per layer, with a root mean square of 0.2.

    All updates are float32 [layers, rows, columns]. `axes` are the logical axes of each parameter,
    by path. Sources: Jordan, "Muon", 2024, kellerjordan.github.io/posts/muon; arXiv 2502.16982,
    equation 4, for the size of the updates.
    """

    def orthogonalize(updates: Any, params: Any) -> Any:
        del params
        leaves, structure = jax.tree_util.tree_flatten_with_path(updates)
        of_shape: dict[tuple[int, ...], dict[int, jax.Array]] = defaultdict(dict)
        for at, (_, leaf) in enumerate(leaves):
            of_shape[leaf.shape[1:]][at] = leaf
        found: dict[int, jax.Array] = {}
        for members in of_shape.values():
            ends = list(itertools.accumulate(len(leaf) for leaf in members.values()))
            matrices = jnp.concatenate(list(members.values()))
            # Each device computes whole matrices, because the iteration multiplies all rows by all
            # rows. Zeros fill up the share of the last devices.
            rest = -len(matrices) % parts_in_use("matrices")
            padded = jnp.pad(matrices, ((0, rest), (0, 0), (0, 0)))
            spread = constrain(padded, "matrices", "rest", "rest")
            made, _ = _NEWTON_SCHULZ.update(spread, _NEWTON_SCHULZ.init(spread))
            assert isinstance(made, jax.Array)
            made = RMS * math.sqrt(max(matrices.shape[1:])) * made
            # The last part has the zeros.
            found |= dict(zip(members, jnp.split(made, ends), strict=False))
        names = (axes[tuple(key.key for key in path)] for path, _ in leaves)
        placed = (_as_trained(found[at], each) for at, each in enumerate(names))
        return jax.tree.unflatten(structure, list(placed))

    return optax.chain(optax.trace(MOMENTUM, nesterov=True), optax.stateless(orthogonalize))


def _as_trained(update: jax.Array, names: LogicalAxes) -> jax.Array:
    """Constrains an update to the sharding of its parameter between steps."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return update
    return jax.lax.with_sharding_constraint(update, trained_spec(mesh, names, update.shape))
