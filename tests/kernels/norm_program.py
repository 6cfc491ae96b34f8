"""``python -m tests.kernels.norm_program 128 v4:2x2x1 …``: compiles LayerNorm's kernels.

Forward and backward, with dropout and without. Prints the names of the kernels in each program, as
JSON; a process of its own for test_norm_compile.py.
"""

import json
import re
import sys

import jax

from bert_jax.kernels.norm import lower_alone
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.program import open_devices


def kernels(topology: str, length: int, width: int, dtype: str) -> list[str]:
    """The kernels in the lowered program, once the compiler has taken it.

    On a mesh, by which they know whose words of dropout are composed.
    """

    devices = open_devices(parse_topology(topology), slices=1)[:1]
    with jax.set_mesh(make_mesh(MeshSection(), devices)):
        both = [
            lower_alone(batch=2, length=length, width=width, dtype=dtype, rate=rate)
            for rate in (0.0, 0.1)
        ]
        for lowered in both:
            lowered.compile()
    texts = (lowered.as_text() for lowered in both)
    return sorted(set(re.findall(r"norm_\w+ward", "".join(texts))))


if __name__ == "__main__":
    length, width, dtype, *topologies = sys.argv[1:]
    found = {name: kernels(name, int(length), int(width), dtype) for name in topologies}
    print(json.dumps(found))
