"""``python -m tests.kernels.alone_program 77 768 bfloat16 v4:2x2x1 …``: compiles kernels.

Those around LayerNorm, with dropout and without, of rows of so many tokens of so many numbers, and
that of GELU's gradient. Prints the names of the kernels in each program, as JSON; a process of its
own for test_alone_compile.py.
"""

import json
import re
import sys

import jax

from bert_jax.kernels import gelu_product, norm
from bert_jax.model.elementwise import gelu_slope
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.program import open_devices


def kernels(topology: str, length: int, width: int, dtype: str) -> list[str]:
    """The kernels in the lowered programs, once the compiler has taken them.

    On a mesh, by which they know whose words of dropout are composed.
    """
    devices = open_devices(parse_topology(topology), slices=1)[:1]
    with jax.set_mesh(make_mesh(MeshSection(), devices)):
        alone = [
            norm.lower_alone(batch=2, length=length, width=width, dtype=dtype, rate=rate)
            for rate in (0.0, 0.1)
        ]
        if dtype == "bfloat16":  # which it is chosen for
            sizes = {"rows": 2 * length, "width": width, "inner": 4 * width}
            alone.append(gelu_product.lower_alone(**sizes, dtype=dtype, slope=gelu_slope))
        for lowered in alone:
            lowered.compile()
    texts = "".join(lowered.as_text() for lowered in alone)
    return sorted(set(re.findall(r'kernel_name = "(\w+)"', texts)))


if __name__ == "__main__":
    length, width, dtype, *topologies = sys.argv[1:]
    found = {name: kernels(name, int(length), int(width), dtype) for name in topologies}
    print(json.dumps(found))
