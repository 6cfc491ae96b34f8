"""Repeats a dumped step: computes its loss and gradients, on any devices."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from etils import epath
from flax.traverse_util import unflatten_dict
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.parameter_groups import ParameterGroups
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.sharding_rules import batch_sharding, replicated
from bert_jax.task import Task
from bert_jax.train.dump import BATCH, STATE, DumpRecord, read_tensors
from bert_jax.train.frozen import check_frozen, load_frozen
from bert_jax.train.state import TrainState, define_model, named
from bert_jax.train.step import make_gradients, squares_by_layer

PARAMS: Final = "params/"

# Relative tolerance of loss and gradient norm, because device types round differently.
SAME: Final = 0.01


class Replay(NamedTuple):
    """The results of a repeated step."""

    loss: float  # loss of the global batch
    gradient_norm: float  # norm over all parameters
    # Norms by parameter and layer, in the order of the backward pass: ``mlm/dense/kernel``, …,
    # ``encoder/layers.1/output/kernel``, …
    gradient_norms: Mapping[str, float]
    # First non-finite value of each array of the batch and of each parameter before the step:
    # ``batch masked_lm_weights[3, 0] = nan``
    bad_inputs: Sequence[str]
    reproduces: bool  # whether loss and gradient norm match the dump

    @property
    def first_bad(self) -> str | None:
        """The parameter with the first non-finite gradient, in the order of the backward pass."""
        return next((n for n, v in self.gradient_norms.items() if not math.isfinite(v)), None)


def replay_step(folder: epath.Path, record: DumpRecord, task: Task, *, chunks: int = 1) -> Replay:
    """Repeats a dumped step of a task up to its gradients.

    `chunks` is the number of microbatches that the task itself makes of a batch.

    Raises UserError if the dump is damaged, or belongs to another task or other frozen models.
    """
    batch = read_tensors(folder, BATCH, record)
    state = read_tensors(folder, STATE, record, only=lambda name: not name.startswith("opt_state"))
    params = {n.removeprefix(PARAMS): a for n, a in state.items() if n.startswith(PARAMS)}
    model = define_model(task.build)
    _compare(params, model.params, folder)
    mesh = _mesh(len(array) // record.accumulation // chunks for array in batch.values())
    frozen = load_frozen(task, mesh)
    check_frozen(record.frozen, frozen.hashes, place=folder)
    gradients = make_gradients(task, model, accumulation=record.accumulation)

    def run(state: TrainState, batch: Any) -> tuple[jax.Array, Any]:
        loss, _, grads = gradients(state, batch, frozen.params)
        return loss, squares_by_layer(grads, model.axes)

    with jax.set_mesh(mesh):
        nested = unflatten_dict(params, sep="/")
        before = TrainState(state["step"], state["rng"], nested, (), np.bool_(True))
        placed = jax.device_put(before, replicated(mesh))
        loss, squares = jax.device_get(
            jax.jit(run)(placed, jax.device_put(batch, batch_sharding(mesh)))
        )
    leaves = [(name, np.ravel(leaf)) for name, leaf in named(squares)]
    total = float(np.sqrt(sum(np.sum(leaf, dtype=np.float64) for _, leaf in leaves)))
    recorded = record.figures
    return Replay(
        loss=float(loss),
        gradient_norm=total,
        gradient_norms=by_layer(
            {name: np.sqrt(leaf).tolist() for name, leaf in leaves}, model.groups
        ),
        bad_inputs=[*_not_finite(BATCH, batch), *_not_finite("parameter", params)],
        reproduces=_same(float(loss), recorded["loss"]) and _same(total, recorded["gradient_norm"]),
    )


def by_layer(norms: Mapping[str, Sequence[float]], groups: ParameterGroups) -> dict[str, float]:
    """Returns the norms with one name per layer, in the order of the backward pass.

    In `norms`, a stacked parameter has one value per layer; any other parameter has one value.
    """
    found = {
        layer: norm
        for name, values in norms.items()
        for layer, norm in groups.by_layer(name, list(values)).items()
    }
    return dict(sorted(found.items(), key=lambda item: groups.backward_order(item[0])))


def by_module(norms: Mapping[str, float]) -> dict[str, float]:
    """Returns the norms of modules and layers: ``{"mlm": 0.3, "encoder/layers.1": 1.2, …}``."""
    squares: defaultdict[str, float] = defaultdict(float)
    for name, norm in norms.items():
        parts = name.split("/")
        squares["/".join(parts[: 2 if parts[0] == "encoder" else 1])] += norm * norm
    return {module: math.sqrt(total) for module, total in squares.items()}


def _mesh(rows: Iterator[int]) -> Mesh:
    """Returns a mesh of the largest number of devices that divides the rows of a microbatch."""
    common, devices = math.gcd(*rows), jax.local_devices()
    count = max(n for n in range(1, len(devices) + 1) if common % n == 0)
    return make_mesh(MeshSection(data=count), devices[:count])


def _compare(found: Mapping[str, np.ndarray], wanted: Any, folder: epath.Path) -> None:
    shapes = {name: leaf.shape for name, leaf in named(wanted)}
    for name in sorted({*shapes, *found}):
        have = found[name].shape if name in found else "none"
        if have != shapes.get(name):
            raise UserError(
                "dump.other_model",
                "found shape {found}, but the model of its config.yaml has {expected}",
                place=f"{folder}: {name}",
                found=str(have),
                expected=str(shapes.get(name, "none")),
            )


def _not_finite(what: str, arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields the first non-finite value of each array as text."""
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0]
            yield f"{what} {name}{[*map(int, at)]} = {array[tuple(at)]}"


def _same(found: float, recorded: float) -> bool:
    if not math.isfinite(recorded):
        return not math.isfinite(found)
    return math.isclose(found, recorded, rel_tol=SAME)
