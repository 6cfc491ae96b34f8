"""``python -m tests.golden.make_specs`` writes parameter_specs.json, the layout of every parameter
and moment of the pretraining model.

Run it after an intended change of layout, and read the diff before committing it. The model is L2
H64 with 8 heads and 250 pieces on a mesh of data 2, fsdp 2, tensor 2; a larger model follows the
same rules.
"""

import json
from pathlib import Path
from typing import Any

import jax

from bert_jax.optim.optimizer import MomentsState, make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import TrainState, abstract_state, define_model
from tests.support import small_task

GOLDEN = Path(__file__).with_name("parameter_specs.json")


def layouts() -> dict[str, dict[str, Any]]:
    """``{"mlm/bias": {"shape": [256], "parameter": ["tensor"], "mu": …, "nu": …}, …}``."""
    mesh = make_mesh(MeshSection(data=2, fsdp=2, tensor=2), jax.devices()[:8])
    model = define_model(small_task().build)
    optimizer = make_optimizer(OptimizerSection(), model.axes)
    state = abstract_state(model, optimizer, mesh)
    moments = _moments(state)
    trees = {"parameter": state.params, "mu": moments.mu, "nu": moments.nu}
    found: dict[str, dict[str, Any]] = {}
    for kind, tree in trees.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            entry = found.setdefault(name, {"shape": list(leaf.shape)})
            entry[kind] = [
                list(axis) if isinstance(axis, tuple) else axis for axis in leaf.sharding.spec
            ]
    return found


def _moments(state: TrainState) -> MomentsState:
    (moments,) = (part for part in state.opt_state if isinstance(part, MomentsState))
    return moments


def text() -> str:
    """One parameter per line, for readable diffs."""
    lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in layouts().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    GOLDEN.write_text(text(), encoding="utf-8")
