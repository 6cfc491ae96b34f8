"""``python -m tests.kernels.cross_entropy_program 77 768 640 bfloat16 v4:2x2x1 …``: compiles them.

Both kernels of the masked pieces' loss. Prints their names in each program, as JSON; a process of
its own for test_cross_entropy_compile.py.
"""

import json
import re
import sys

import jax

from bert_jax.kernels.cross_entropy import lower_alone
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.program import open_devices


def kernels(topology: str, rows: int, hidden: int, pieces: int, dtype: str) -> list[str]:
    """The kernels in the lowered program, once the compiler has taken it.

    On a mesh, by which they know how many cores share a grid.
    """
    devices = open_devices(parse_topology(topology), slices=1)[:1]
    with jax.set_mesh(make_mesh(MeshSection(), devices)):
        lowered = lower_alone(rows=rows, hidden=hidden, pieces=pieces, dtype=dtype)
        lowered.compile()
    return sorted(set(re.findall(r"cross_entropy_\w+ward", lowered.as_text())))


if __name__ == "__main__":
    *sizes, dtype = sys.argv[1:5]
    rows, hidden, pieces = map(int, sizes)
    found = {name: kernels(name, rows, hidden, pieces, dtype) for name in sys.argv[5:]}
    print(json.dumps(found))
