"""``python -m tests.kernels.alone_program '{"v4:2x2x1": [["norm", {…}]], …}'`` compiles kernels.

``norm`` calls `lower_norm` of `benchmarks.kernels_alone`. ``["finetuning", {}]`` compiles the train
step of a classifier. Prints the names of the kernels for each topology as JSON.
test_alone_compile.py runs this program in a separate process.
"""

import json
import sys
from typing import Any

import jax

from benchmarks import kernels_alone
from benchmarks.planned_finetuning import lowered_step, task_of
from bert_jax.model.section import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.kernels import kernels_of
from bert_jax.planning.compilation.lowering import open_devices
from tests.support import small_architecture


def kernels(topology: str, wanted: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Compiles programs, and returns the names of their kernels.

    The kernels depend on the chip: whether it emulates int32 products, and its number of cores.
    """
    devices = open_devices(parse_topology(topology), slices=1)
    names: list[str] = []
    for module, arguments in wanted:
        if module == "finetuning":
            architecture = small_architecture(hidden_size=128, num_attention_heads=2)
            mesh = make_mesh(MeshSection(), devices)
            task = task_of("classifier", architecture, Execution(), mesh, 40)
            lowered = lowered_step(task, mesh, rows=8, length=40).lowered
        else:
            with jax.set_mesh(make_mesh(MeshSection(), devices[:1])):
                lowered = getattr(kernels_alone, f"lower_{module}")(**arguments)
        lowered.compile()
        names += [each.name for each in kernels_of(lowered.as_text())]
    return sorted(names)


if __name__ == "__main__":
    print(json.dumps({name: kernels(name, each) for name, each in json.loads(sys.argv[1]).items()}))
