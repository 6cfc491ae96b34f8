"""``python -m tests.tasks.tpu_program v5e:2x2 …``: compiles fine-tuning's step for TPUs.

Of a classifier, as `finetune` executes it there. Prints which kernels are in it, as JSON; a process
of its own for test_tpu_step.py.
"""

import json
import sys

from benchmarks.planned_finetuning import lowered_step
from bert_jax.model.config import Execution
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.kernels_alone import kernels_of
from bert_jax.planning.compilation.lowering import open_devices
from tests.support import small_architecture


def kernels(topology: str) -> list[str]:
    """The kernels of a step, once the compiler has taken it."""
    mesh = make_mesh(MeshSection(), open_devices(parse_topology(topology), slices=1))
    architecture = small_architecture(hidden_size=128, num_attention_heads=2)
    lowered = lowered_step(architecture, Execution(), mesh, rows=8, length=40)
    lowered.compile()
    return sorted(each.name for each in kernels_of(lowered.as_text()))


if __name__ == "__main__":
    print(json.dumps({name: kernels(name) for name in sys.argv[1:]}))
