"""``python -m tests.kernels.alone_program '[["norm", {…}]]' v4:2x2x1 …``: compiles kernels.

By the functions of `benchmarks.kernels_alone`. Prints the names of the kernels in each program, as
JSON; a process of its own for test_alone_compile.py.
"""

import json
import sys
from typing import Any

import jax

from benchmarks import kernels_alone
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.kernels_alone import kernels_of
from bert_jax.planning.compilation.lowering import open_devices


def kernels(topology: str, wanted: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The kernels in the lowered programs, once the compiler has taken them.

    On a mesh, by which they know what the chip composes, and how many cores share a grid.
    """
    devices = open_devices(parse_topology(topology), slices=1)[:1]
    names: set[str] = set()
    with jax.set_mesh(make_mesh(MeshSection(), devices)):
        for module, arguments in wanted:
            lowered = getattr(kernels_alone, f"lower_{module}")(**arguments)
            lowered.compile()
            names |= {each.name for each in kernels_of(lowered.as_text())}
    return sorted(names)


if __name__ == "__main__":
    print(json.dumps({name: kernels(name, json.loads(sys.argv[1])) for name in sys.argv[2:]}))
