"""Makes a plan: chooses the steps to compile, and searches for settings that fit.

Most suggestions change only memory and time, not the training: accumulation, remat, and how
parameters are sharded. One suggestion has another batch size, which changes the training.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self

from bert_jax.errors import UserError
from bert_jax.model.section import Remat
from bert_jax.parallel.section import mesh_shape
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compilation.step import CompiledStep, quick_refusal
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.request import CompileRequest, StepKind, installed_versions
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.workflows.epochs import count_epochs, describe_epochs

# Largest error of estimated cycles. `base` on v5e:4x4 is off by 2.5%; see docs/planning.md.
_CYCLES_OFF: Final = "10%"
QUICK_NOTE: Final = (
    f"quick: memory is from the compiler, cycles are estimates within about {_CYCLES_OFF}; --exact "
    f"also generates code, which takes minutes"
)
SHALLOW: Final = 2  # maximum number of layers for which exact compilation is as fast as quick

COMPILED: Final = 10  # maximum number of candidates compiled at the run's batch size
_ENOUGH: Final = 4  # the search stops after this many candidates fit

# Remat settings, fastest first. Each needs less memory than the previous one.
_REMAT: Final[tuple[Remat, ...]] = ("none", "attention", "dots", "full")
_TRIED: Final[tuple[Remat, ...]] = ("none", "attention", "full")
_ACCUMULATION: Final = (1, 2, 4, 8, 16)  # multiples of the configured accumulation


def make_plan(
    run: CompileRequest, *, exact: bool = False, suggest: bool | None = None, compiler: Compiler
) -> Plan:
    """Compiles every step of a run. `run` is the request of any of its steps.

    With `exact`, the compiler generates code for all programs; otherwise only for shallow models.
    `suggest` decides whether to search for settings that fit. Default: search if the run does not
    fit. Raises the same errors as `Compiler.steps`.
    """
    topology, why_exact = parse_topology(run.topology), quick_refusal()
    architecture = run.model.resolve(vocab_size=run.vocab_size)
    deep = architecture.num_hidden_layers > SHALLOW  # exact compilation takes minutes
    quick = deep and not exact and why_exact is None
    run = run.model_copy(update={"topology": topology.name, "quick": quick})
    phases = _phases(run, compiler)
    notes = [QUICK_NOTE] if any(phase.train.quick for phase in phases) else []
    if why_exact and deep and not exact:
        notes.append(why_exact)
    if run.train.evaluation and not run.train.evaluation.examples:
        notes.append("the hours exclude evaluation: train.evaluation.examples is not set")
    if epochs := list(count_epochs(run.train)):
        notes.append(describe_epochs(epochs)[0].removesuffix("."))
    segments = schedule_segments(run.train, run.optimizer)
    plan = Plan(
        topology=topology,
        slices=run.mesh.slices,
        phases=phases,
        learning_rate=tuple(each.describe() for each in segments),
        versions=installed_versions(),
        notes=tuple(notes),
    )
    if suggest or (suggest is None and not plan.fits):
        return _with_suggestions(plan, run, compiler)
    return plan


def _phases(run: CompileRequest, compiler: Compiler) -> list[PhasePlan]:
    sections = run.train.phases

    def steps(kind: StepKind, phases: list[int]) -> dict[int, CompiledStep]:
        requests = [run.model_copy(update={"kind": kind, "phase": phase}) for phase in phases]
        return dict(zip(phases, compiler.steps(requests), strict=True))

    trains = steps("train", list(range(len(sections))))
    unsure = [at for at, train in trains.items() if _is_compiled(run, at, train)]
    evaluations = steps("evaluation", unsure)
    evaluation, ema = run.train.evaluation, run.train.ema
    found = []
    for at, section in enumerate(sections):
        found += _ramp(run, at, compiler)
        rows = run.train.evaluation_rows(section)
        times = section.steps // evaluation.every if evaluation else 0
        times *= 2 if ema is not None and ema.evaluate else 1
        examples = (evaluation and evaluation.examples) or 0
        sets = len(evaluation.held_out) or 1 if evaluation else 0
        found.append(
            PhasePlan(
                steps=section.steps - section.ramp_steps,
                seq_length=section.seq_length,
                batch_size=section.batch_size,
                train=trains[at],
                evaluation=evaluations.get(at),
                evaluation_batches=times * sets * math.ceil(examples / rows),
                evaluation_rows=rows,
            )
        )
    return found


def _ramp(run: CompileRequest, phase: int, compiler: Compiler) -> list[PhasePlan]:
    """Returns a plan for each stage of a phase's batch ramp. The phase's own plan evaluates."""
    section = run.train.phases[phase]
    requests = [
        run.model_copy(update={"phase": phase, "batch_size": stage.batch_size})
        for stage in section.batch_ramp
    ]
    return [
        PhasePlan(
            steps=stage.steps,
            seq_length=section.seq_length,
            batch_size=stage.batch_size,
            train=step,
            evaluation=None,
            evaluation_batches=0,
            evaluation_rows=run.train.evaluation_rows(section),
        )
        for stage, step in zip(section.batch_ramp, compiler.steps(requests), strict=True)
    ]


def _is_compiled(run: CompileRequest, phase: int, train: CompiledStep) -> bool:
    """Whether to compile a phase's evaluation. A quick plan skips evaluations that surely fit."""
    if run.train.evaluation is None or not train.quick:
        return run.train.evaluation is not None
    return train.memory is not None and not _surely_fits(run, phase, train)


def _surely_fits(run: CompileRequest, phase: int, train: CompiledStep) -> bool:
    """Returns whether the train step shows that a phase's evaluation fits.

    By default, an evaluation batch has as many rows as a microbatch. For these rows, a forward pass
    needs no more temporaries than a train step. So an evaluation needs at most the peak of the
    train step plus the copy of the parameters.
    """
    section = run.train.phases[phase]
    if train.memory is None or run.train.evaluation_rows(section) > section.microbatch:
        return False
    available = parse_topology(run.topology).accelerator.device_hbm_bytes
    return train.memory.peak + train.copy_bytes <= available


def _with_suggestions(plan: Plan, run: CompileRequest, compiler: Compiler) -> Plan:
    """Returns a plan with settings under which the largest phase fits."""
    if not plan.fits:  # print now: the search takes many times as long as the plan
        line = f"{run.topology}: does not fit: {plan.memory_missing()}"
        compiler.narrator.say(f"{line}; searching for settings that fit")
    sizes = [phase.batch_size * phase.seq_length**2 for phase in run.train.phases]
    run = run.model_copy(update={"phase": sizes.index(max(sizes))})
    changed: tuple[str, ...] = ()
    evaluation = run.train.evaluation
    unfitting = any(phase.evaluation and not phase.evaluation.memory for phase in plan.phases)
    if unfitting and evaluation and evaluation.batch_size is not None:
        # Without the setting, an evaluation batch has the rows of a microbatch.
        evaluation = evaluation.model_copy(update={"batch_size": None})
        train = run.train.model_copy(update={"evaluation": evaluation})
        run = run.model_copy(update={"train": train})
        changed = ("train.evaluation.batch_size=null",)

    def compiled(request: CompileRequest, title: str) -> CompiledStep:
        (train,) = compiler.steps([request], title=title)
        if evaluation is None or train.memory is None:
            return train
        if _surely_fits(request, request.phase, train):
            return train
        evaluating = request.model_copy(update={"kind": "evaluation"})
        (evaluated,) = compiler.steps([evaluating], title=f"{title}, evaluation")
        return evaluated if evaluated.memory is None else train

    fitting = find_fitting(run, plan.topology, compiled=compiled)
    found = [plan.suggestion((*changed, *overrides), step) for overrides, step in fitting]
    ordered = sorted(found, key=lambda one: -one.rows_per_second)
    return dataclasses.replace(plan, suggestions=tuple(ordered))


class TriedSettings(NamedTuple):
    """Settings to try: remat, the batch of a phase, and the mesh."""

    remat: Remat
    accumulation: int
    fsdp: int
    tensor: int
    batch_size: int

    def overrides(self, request: CompileRequest) -> tuple[str, ...]:
        """Returns the settings that differ from a request, as overrides for the command line."""
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
        """Returns a lower bound of the memory, as a share of `other`'s memory; 0 if unknown."""
        saves = _REMAT.index(self.remat) > _REMAT.index(other.remat)
        if saves or (self.fsdp, self.tensor) != (other.fsdp, other.tensor):
            return 0.0
        return self._microbatch / other._microbatch

    @property
    def _microbatch(self) -> float:
        return self.batch_size / self.accumulation


Fitting = tuple[tuple[str, ...], CompiledStep]  # overrides, and the step compiled with them


def find_fitting(
    request: CompileRequest,
    topology: TpuTopology,
    *,
    compiled: Callable[[CompileRequest, str], CompiledStep],
) -> list[Fitting]:
    """Compiles candidates for a train step until enough of them fit.

    Skips a candidate if the memory of an earlier candidate shows that it cannot fit. `compiled`
    compiles a step with a title. If the evaluation does not fit, `compiled` returns the evaluation
    step instead.

    Returns:
        At most four settings that fit, out of at most ten compiled, and one with another batch
        size. If accumulation had to grow, that size is divided by the factor; otherwise it is
        doubled.
    """
    tried: dict[TriedSettings, CompiledStep | None] = {}  # None for invalid settings

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
    """Returns settings with fewer microbatches of the same size, or with a doubled batch."""
    configured = request.train.phases[request.phase].accumulation
    more = fitting.accumulation // configured
    size = fitting.batch_size // more if more > 1 else 2 * fitting.batch_size
    return fitting._replace(accumulation=configured, batch_size=size)


def candidates(request: CompileRequest, topology: TpuTopology) -> Iterator[TriedSettings]:
    """Yields settings to try: as configured, other meshes and remat, then more accumulation."""
    phase, configured = request.train.phases[request.phase], request.model.execution.remat
    inside = topology.devices
    devices = inside * request.mesh.slices
    _, fsdp, tensor = mesh_shape(request.mesh, devices)
    layouts = [(fsdp, tensor), (inside // tensor, tensor), (inside // max(2, tensor), 2)]
    remats: tuple[Remat, ...] = (configured, *(each for each in _TRIED if each != configured))
    # The fastest candidates come first: recomputing attention costs less time than halving the
    # microbatch.
    for more, remat in itertools.product(_ACCUMULATION, remats):
        accumulation = phase.accumulation * more
        tried = dict.fromkeys(layouts if remat == configured else layouts[:1])
        for each_fsdp, each_tensor in tried:
            deals = phase.batch_size % (devices // each_tensor * accumulation) == 0
            data = inside // (each_fsdp * each_tensor)
            if deals and data and data % (request.mesh.copies or 1) == 0:
                yield TriedSettings(remat, accumulation, each_fsdp, each_tensor, phase.batch_size)
