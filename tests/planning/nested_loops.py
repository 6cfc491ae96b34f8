"""``python -m tests.planning.nested_loops v5e:2x2 OUTPUT``: loops of known trips, compiled.

6 × 4 products in two scans, one inside the other, with a sum over the chips in the outer one; a
loop that ends when the data say so; a branch. Writes the program's text.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.lowering import open_devices

OUTER, INNER, WIDTH, ROWS = 6, 4, 512, 4096


def step(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x [ROWS, WIDTH], weights [OUTER, INNER, WIDTH, WIDTH]."""

    def outer(x: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, rows)
        return x / jnp.sum(x.astype(jnp.float32)).astype(x.dtype), None

    x, _ = jax.lax.scan(outer, x, weights)
    x = jax.lax.while_loop(
        lambda x: jnp.sum(x.astype(jnp.float32)) > 3, lambda x: x * 0.5 @ weights[0, 0], x
    )
    return jax.lax.cond(
        jnp.sum(x.astype(jnp.float32)) > 1,
        lambda x: x @ weights[0, 1] @ weights[0, 2],
        lambda x: x @ weights[0, 1],
        x,
    )


def main(topology: str, output: str) -> None:
    """Compiles and writes."""
    devices = np.asarray(open_devices(parse_topology(topology), slices=1))
    mesh = Mesh(devices, ("data",))

    def of(shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    x = of((ROWS, WIDTH), PartitionSpec("data"))
    weights = of((OUTER, INNER, WIDTH, WIDTH), PartitionSpec())
    text = jax.jit(step).lower(x, weights).compile().as_text()
    assert text is not None
    Path(output).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
