"""Settings under which a run fits, and how fast each is, found by compiling them.

Tried are layouts and recomputation, which change memory and time and no number of the training:
accumulation, remat, and how parameters are split. The batch stays what it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bert_jax.errors import UserError
from bert_jax.model.config import Remat
from bert_jax.parallel.mesh import mesh_shape
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compiled_step import CompiledStep
from bert_jax.planning.request import CompileRequest

COMPILED: Final = 10  # candidates, at most
_ENOUGH: Final = 4  # that fit

# What the backward pass computes again, from the fastest to the smallest.
_REMAT: Final[tuple[Remat, ...]] = ("none", "attention", "full")
_ACCUMULATION: Final = (1, 2, 4, 8, 16)


class TriedSettings(NamedTuple):
    """Settings to try: of the model's execution, of the phase, of the mesh."""

    remat: Remat
    accumulation: int
    fsdp: int
    tensor: int

    def overrides(self, request: CompileRequest) -> tuple[str, ...]:
        """Returns what of them differs from a request, as the command line takes it."""
        phase = request.train.phases[request.phase]
        mesh, execution = request.mesh, request.model.execution
        found = (
            ("model.execution.remat", execution.remat, self.remat),
            (f"train.phases.{request.phase}.accumulation", phase.accumulation, self.accumulation),
            ("mesh.fsdp", mesh.fsdp, self.fsdp),
            ("mesh.tensor", mesh.tensor, self.tensor),
        )
        return tuple(f"{key}={new}" for key, old, new in found if old != new)

    def _layout(self) -> dict[str, int]:
        """Returns what of them belongs to `mesh`."""
        own = self._asdict().items()
        return {"data": -1, **{key: value for key, value in own if key in MeshSection.model_fields}}

    def applied(self, request: CompileRequest) -> CompileRequest:
        """Returns the request with these settings."""
        execution = request.model.execution.model_copy(update={"remat": self.remat})
        phases = list(request.train.phases)
        changed = {"accumulation": self.accumulation}
        phases[request.phase] = phases[request.phase].model_copy(update=changed)
        return request.model_copy(
            update={
                "model": request.model.model_copy(update={"execution": execution}),
                "train": request.train.model_copy(update={"phases": tuple(phases)}),
                "mesh": request.mesh.model_copy(update=self._layout()),
            }
        )


class Fitting(NamedTuple):
    """A candidate that compiled into the memory there is."""

    overrides: tuple[str, ...]
    step: CompiledStep


def find_fitting(
    request: CompileRequest,
    topology: TpuTopology,
    *,
    compiled: Callable[[CompileRequest, str], CompiledStep],
) -> list[Fitting]:
    """Compiles candidates, those that change least first, until some fit.

    Args:
        request: for the train step that needs most memory, as configured.
        topology: of the request.
        compiled: compiles a request with a title.

    Returns:
        At most four, of ten that are compiled at most.

    Raises:
        RunStopped: the compiler failed.
    """
    fitting: list[Fitting] = []
    for candidate in itertools.islice(candidates(request, topology), COMPILED):
        overrides = candidate.overrides(request)
        try:
            title = f"{topology.name}: {' '.join(overrides) or 'as configured'}"
            step = compiled(candidate.applied(request), title)
        except UserError:  # these settings do not go together
            continue
        if step.memory is not None:
            fitting.append(Fitting(overrides, step))
            if len(fitting) == _ENOUGH:
                break
    return fitting


def candidates(request: CompileRequest, topology: TpuTopology) -> Iterator[TriedSettings]:
    """Yields settings to try: as configured, less recomputation, then ever less memory."""
    phase, execution = request.train.phases[request.phase], request.model.execution
    devices = topology.devices * request.mesh.slices
    inside = topology.devices
    _, fsdp, tensor = mesh_shape(request.mesh, devices)
    layouts = [(fsdp, tensor), (inside // tensor, tensor), (inside // max(2, tensor), 2)]
    seen: set[TriedSettings] = set()
    # Cheapest in time first: recomputing attention costs less than halving a microbatch.
    ladder = [
        (execution.remat, phase.accumulation),
        *itertools.product(_REMAT, [phase.accumulation]),
        *itertools.product(_REMAT, [n for n in _ACCUMULATION if n > phase.accumulation]),
    ]
    ladder.sort(key=lambda pair: (pair[1], _REMAT.index(pair[0]) if pair[0] in _REMAT else 0))
    for at, (remat, accumulation) in enumerate(ladder):
        for each_fsdp, each_tensor in layouts if at % 3 == 2 else layouts[:1]:
            found = TriedSettings(remat, accumulation, each_fsdp, each_tensor)
            parts = devices // each_tensor
            fits = phase.batch_size % (parts * accumulation) == 0
            if found not in seen and fits and each_fsdp * each_tensor <= inside:
                seen.add(found)
                yield found
