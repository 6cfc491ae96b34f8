"""Settings under which a run fits, and how fast each is, found by compiling them.

Layouts and recomputation change memory and time and no number of the training: accumulation, remat,
and how parameters are split. After a setting that fits, another batch size is tried, which is
another training.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self

from bert_jax.errors import UserError
from bert_jax.model.config import Remat
from bert_jax.parallel.section import mesh_shape
from bert_jax.parallel.topology import TpuTopology
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.request import CompileRequest

COMPILED: Final = 10  # candidates of the run's batch, at most
_ENOUGH: Final = 4  # that fit

# What the backward pass computes again, from the fastest to the smallest.
_REMAT: Final[tuple[Remat, ...]] = ("none", "attention", "dots", "full")
_TRIED: Final[tuple[Remat, ...]] = ("none", "attention", "full")
_ACCUMULATION: Final = (1, 2, 4, 8, 16)  # times what is configured


class TriedSettings(NamedTuple):
    """Settings to try: of the model's execution, of the phase, of the mesh."""

    remat: Remat
    accumulation: int
    fsdp: int
    tensor: int
    batch_size: int

    def overrides(self, request: CompileRequest) -> tuple[str, ...]:
        """Returns the settings that differ from a request, as the command line takes them."""
        phase, key = request.train.phases[request.phase], f"train.phases.{request.phase}"
        mesh, execution = request.mesh, request.model.execution
        found = (
            ("model.execution.remat", execution.remat, self.remat),
            (f"{key}.batch_size", phase.batch_size, self.batch_size),
            (f"{key}.accumulation", phase.accumulation, self.accumulation),
            ("mesh.fsdp", mesh.fsdp, self.fsdp),
            ("mesh.tensor", mesh.tensor, self.tensor),
        )
        return tuple(f"{key}={new}" for key, old, new in found if old != new)

    def applied(self, request: CompileRequest) -> CompileRequest:
        """Returns the request with these settings."""
        execution = request.model.execution.model_copy(update={"remat": self.remat})
        layout = dict(data=-1, fsdp=self.fsdp, tensor=self.tensor)
        phases = list(request.train.phases)
        changed = {"accumulation": self.accumulation, "batch_size": self.batch_size}
        phases[request.phase] = phases[request.phase].model_copy(update=changed)
        return request.model_copy(
            update={
                "model": request.model.model_copy(update={"execution": execution}),
                "train": request.train.model_copy(update={"phases": tuple(phases)}),
                "mesh": request.mesh.model_copy(update=layout),
            }
        )

    def least_share(self, other: Self) -> float:
        """Returns the least part of other settings' memory that these need; 0: unknown."""
        saves = _REMAT.index(self.remat) > _REMAT.index(other.remat)
        if saves or (self.fsdp, self.tensor) != (other.fsdp, other.tensor):
            return 0.0
        return self._microbatch / other._microbatch

    @property
    def _microbatch(self) -> float:
        return self.batch_size / self.accumulation


Fitting = tuple[tuple[str, ...], CompiledStep]  # overrides, and the step that they give


def find_fitting(
    request: CompileRequest,
    topology: TpuTopology,
    *,
    compiled: Callable[[CompileRequest, str], CompiledStep],
) -> list[Fitting]:
    """Compiles candidates, those that change least first, until some fit.

    A candidate that must need too much memory, judging by others, is left out.

    Args:
        request: the train step that needs most memory.
        topology: of a slice.
        compiled: compiles a train step with a title. If its evaluation does not fit, it returns the
            evaluation instead.

    Returns:
        At most four settings that fit, of ten that are compiled at most, and one of another batch
        size: twice as large, or, where it took more accumulation to fit, as much smaller.

    Raises:
        RunStopped: the compiler failed.
    """
    tried: dict[TriedSettings, CompiledStep | None] = {}  # None: they do not go together

    def fits(candidate: TriedSettings) -> bool:
        at = f"{topology.name}, settings {len(tried) + 1} of at most {COMPILED + 1}"
        title = f"{at}: {' '.join(candidate.overrides(request)) or 'as configured'}"
        try:
            tried[candidate] = step = compiled(candidate.applied(request), title)
        except UserError:
            tried[candidate] = step = None
        return step is not None and step.memory is not None

    fitting: list[TriedSettings] = []
    for candidate in candidates(request, topology):
        if len(tried) == COMPILED or len(fitting) == _ENOUGH:
            break
        if not any(_is_too_large(candidate, *other) for other in tried.items()) and fits(candidate):
            fitting.append(candidate)
    if fitting and fits(other := _of_another_batch(fitting[0], request)):
        fitting.append(other)
    steps = ((each, tried[each]) for each in fitting)
    return [(each.overrides(request), step) for each, step in steps if step is not None]


def _is_too_large(
    candidate: TriedSettings, other: TriedSettings, step: CompiledStep | None
) -> bool:
    if step is None or step.needed_bytes is None or step.available_bytes is None:
        return False
    return step.needed_bytes * candidate.least_share(other) > step.available_bytes


def _of_another_batch(fitting: TriedSettings, request: CompileRequest) -> TriedSettings:
    """Returns settings with the same microbatches and fewer of them, or with twice as large."""
    configured = request.train.phases[request.phase].accumulation
    more = fitting.accumulation // configured
    size = fitting.batch_size // more if more > 1 else 2 * fitting.batch_size
    return fitting._replace(accumulation=configured, batch_size=size)


def candidates(request: CompileRequest, topology: TpuTopology) -> Iterator[TriedSettings]:
    """Yields settings to try: as configured, other layouts and remat, then more accumulation."""
    phase, configured = request.train.phases[request.phase], request.model.execution.remat
    inside = topology.devices
    devices = inside * request.mesh.slices
    _, fsdp, tensor = mesh_shape(request.mesh, devices)
    layouts = [(fsdp, tensor), (inside // tensor, tensor), (inside // max(2, tensor), 2)]
    remats: tuple[Remat, ...] = (configured, *(each for each in _TRIED if each != configured))
    # Cheapest in time first: recomputing attention costs less than halving a microbatch.
    for more, remat in itertools.product(_ACCUMULATION, remats):
        accumulation = phase.accumulation * more
        tried = dict.fromkeys(layouts if remat == configured else layouts[:1])
        for each_fsdp, each_tensor in tried:
            deals = phase.batch_size % (devices // each_tensor * accumulation) == 0
            if deals and each_fsdp * each_tensor <= inside:
                yield TriedSettings(remat, accumulation, each_fsdp, each_tensor, phase.batch_size)
