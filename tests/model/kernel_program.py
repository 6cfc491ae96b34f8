"""``python -m tests.model.kernel_program 128 v4:2x2x1 …``: compiles `fused` attention for chips.

Forward and backward, with dropout. Prints the names of the kernels in each program, as JSON; a
process of its own for test_kernel_compile.py.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp

from bert_jax.kernels.attention import fused_attention
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.program import open_devices


def kernels(topology: str, length: int) -> list[str]:
    """The kernels in the lowered program, once the compiler has taken it.

    On a mesh, by which they know whose words of dropout are composed.
    """

    def loss(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        bias, seeds = jnp.zeros((3, 128), jnp.float32), jnp.ones((2, 2, 2), jnp.int32)
        out = fused_attention((q, k, v), bias, segments, seeds, columns=64, rate=0.1)
        return out.astype(jnp.float32).sum()

    x = jax.ShapeDtypeStruct((2, length, 128), jnp.bfloat16)
    segments = jax.ShapeDtypeStruct((2, length), jnp.int32)
    devices = open_devices(parse_topology(topology), slices=1)[:1]
    with jax.set_mesh(make_mesh(MeshSection(), devices)):
        lowered = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x, segments)
        lowered.compile()
    return sorted(set(re.findall(r"attention_\w+ward", lowered.as_text())))


if __name__ == "__main__":
    print(json.dumps({name: kernels(name, int(sys.argv[1])) for name in sys.argv[2:]}))
