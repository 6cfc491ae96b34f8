"""``python -m tests.planning.tpu_programs FOLDER SLICE …``: compiles programs with known trips.

``loops.txt`` has OUTER × INNER products in two nested scans. The outer scan sums over the chips. A
data-dependent loop and a branch follow.

``kernel.txt`` has a kernel with STEPS grid steps of OUTER × INNER loop iterations. A scan calls the
kernel TURNS times. The compiler's schedules are in the same folder. tests/golden/planning has the
schedule of a similar kernel with 16 steps and a third, data-dependent loop.

``devices.json`` has the number of devices and hosts of one and two slices, for each SLICE.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.compiler_files import compile_exactly
from bert_jax.planning.compilation.kernels import write_schedules
from bert_jax.planning.compilation.lowering import open_devices

OUTER, INNER = 5, 7
STEPS, TURNS, ROWS, LANES = 64, 3, 1024, 128
WIDTH, TOKENS = 512, 4096


def kernel(x: Any, count: Any, out: Any) -> None:
    """Maps a block of ROWS × LANES to 8 × LANES. `count` keeps XLA from hoisting it."""

    def inner(at: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.tanh(total * 1.5 + x[0, pl.ds(at * 8, 8), :])

    def outer(_: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.exp(jax.lax.fori_loop(0, INNER, inner, total)) + 1.0

    total = jax.lax.fori_loop(0, OUTER, outer, jnp.zeros((8, LANES), jnp.float32))
    out[0] = total + count[0, 0].astype(jnp.float32)


def program(x: jax.Array, count: jax.Array) -> jax.Array:
    """Calls the kernel in a scan: x [STEPS, ROWS, LANES], count [1, 1] -> [STEPS, 8, LANES]."""
    call = pl.pallas_call(
        kernel,
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


def step(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies x [TOKENS, WIDTH] with weights [OUTER, INNER, WIDTH, WIDTH] in loops."""

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


def main(root: str, *slices: str) -> None:
    """Compiles the programs and writes the files."""
    folder = Path(root)
    write_schedules(folder)
    devices = np.asarray(open_devices(parse_topology("v5e:2x2"), slices=1))

    def write(name: str, function: Any, *arguments: jax.ShapeDtypeStruct) -> None:
        with tempfile.TemporaryDirectory() as files:
            program = compile_exactly(jax.jit(function).lower(*arguments), Path(files))
        (folder / name).write_text(program.text, encoding="utf-8")

    def array(mesh: Mesh, shape: tuple[int, ...], dtype: Any, *spec: str) -> jax.ShapeDtypeStruct:
        layout = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout)

    mesh, one = Mesh(devices, ("data",)), Mesh(devices[:1], ("data",))
    write(
        "loops.txt",
        step,
        array(mesh, (TOKENS, WIDTH), jnp.bfloat16, "data"),
        array(mesh, (OUTER, INNER, WIDTH, WIDTH), jnp.bfloat16),
    )
    write(
        "kernel.txt",
        program,
        array(one, (STEPS, ROWS, LANES), jnp.float32),
        array(one, (1, 1), jnp.int32),
    )
    found = {}
    for name in slices:
        for count in (1, 2):
            devices = open_devices(parse_topology(name), slices=count)
            hosts = {device.process_index for device in devices}
            found[f"{name} {count}"] = len(devices), len(hosts)
    (folder / "devices.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
