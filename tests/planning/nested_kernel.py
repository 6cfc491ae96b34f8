"""``python -m tests.planning.nested_kernel v5e:2x2 FOLDER [dynamic]``: a kernel of known loops.

A grid of STEPS; in each step OUTER × INNER turns. With ``dynamic`` a third loop follows, of which
only the data say how often it runs. Called TURNS times by a scan. Writes the compiler's schedules
and ``program.txt`` into the folder; tests/golden/planning was made so, with STEPS 16.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.kernel_schedule import written_to
from bert_jax.planning.compilation.lowering import open_devices

STEPS, OUTER, INNER, TURNS = 64, 5, 7, 3
ROWS, LANES = 1024, 128


def kernel(x: Any, count: Any, out: Any, *, dynamic: bool) -> None:
    """One step: a block of ROWS × LANES in, 8 × LANES out; `count` keeps it inside the scan."""

    def inner(at: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.tanh(total * 1.5 + x[0, pl.ds(at * 8, 8), :])

    def outer(_: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.exp(jax.lax.fori_loop(0, INNER, inner, total)) + 1.0

    total = jax.lax.fori_loop(0, OUTER, outer, jnp.zeros((8, LANES), jnp.float32))
    if dynamic:
        total = jax.lax.fori_loop(0, count[0, 0], lambda _, each: jnp.sqrt(each) + 2.0, total)
    out[0] = total + count[0, 0].astype(jnp.float32)


def program(x: jax.Array, count: jax.Array, *, dynamic: bool) -> jax.Array:
    """x [STEPS, ROWS, LANES], count [1, 1]; returns [STEPS, 8, LANES]."""
    call = pl.pallas_call(
        lambda *references: kernel(*references, dynamic=dynamic),
        grid=(STEPS,),
        in_specs=[
            pl.BlockSpec((1, ROWS, LANES), lambda at: (at, 0, 0)),
            pl.BlockSpec(memory_space=pltpu.SMEM),
        ],
        out_specs=pl.BlockSpec((1, 8, LANES), lambda at: (at, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((STEPS, 8, LANES), jnp.float32),
        name="nested",
    )

    def turn(y: jax.Array, at: jax.Array) -> tuple[jax.Array, None]:
        return y * 0.5 + call(x, count + at), None

    return jax.lax.scan(turn, jnp.zeros((STEPS, 8, LANES)), jnp.arange(TURNS))[0]


def main(topology: str, folder: str, *options: str) -> None:
    """Compiles and writes."""
    with written_to(Path(folder)):
        device = open_devices(parse_topology(topology), slices=1)[0]
    layout = NamedSharding(Mesh(np.array([device]), ("data",)), PartitionSpec())
    x = jax.ShapeDtypeStruct((STEPS, ROWS, LANES), jnp.float32, sharding=layout)
    count = jax.ShapeDtypeStruct((1, 1), jnp.int32, sharding=layout)
    function = jax.jit(lambda x, count: program(x, count, dynamic="dynamic" in options))
    text = function.lower(x, count).compile().as_text()
    assert text is not None
    Path(folder, "program.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
