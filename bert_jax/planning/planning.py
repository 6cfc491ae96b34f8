"""From a configuration's sections to plans, one for each topology."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from bert_jax.model.config import ModelSection
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.planning.compiled_step import CompiledStep
from bert_jax.planning.compiler import Compiler, compiled_step, save_for_cpu
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.quick import NOTE, quick_step, spared_layers
from bert_jax.planning.request import CompileRequest, StepKind
from bert_jax.planning.suggest import find_fitting
from bert_jax.train.sections import TrainSection


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What decides the programs of a run, and how exactly to look at them.

    Attributes:
        vocab_size: of the tokenizer.
        exact: compile the run's own program, however deep; else shallower ones stand for it.
        suggest: look for settings that fit; None: where the run does not.
    """

    vocab_size: int
    model: ModelSection
    objective: ObjectiveSection
    mesh: MeshSection
    optimizer: OptimizerSection
    train: TrainSection
    exact: bool = False
    suggest: bool | None = None

    def request(self, topology: str) -> CompileRequest:
        """Returns the request for the train step of the first phase."""
        return CompileRequest(
            topology=topology,
            kind="train",
            phase=0,
            vocab_size=self.vocab_size,
            model=self.model,
            objective=self.objective,
            mesh=self.mesh,
            optimizer=self.optimizer,
            train=self.train,
        )


def make_plan(settings: PlanSettings, topology: str, *, compiler: Compiler) -> Plan:
    """Compiles every step of a run for a topology.

    Args:
        settings: of the run.
        topology: in any spelling.
        compiler: what to show and keep.

    Raises:
        UserError: no such topology, no libtpu, or mesh, batch and model do not fit it.
        RunStopped: the compiler failed.
    """
    found = parse_topology(topology)
    request = settings.request(found.name)
    look = _Look(found, compiler, exact=settings.exact or compiler.save_to is not None)
    phases = [_phase(settings, at, look) for at in range(len(settings.train.phases))]
    notes = []
    if any(phase.train.extrapolated for phase in phases):
        notes.append(NOTE.format(layers=spared_layers(request)))
    if settings.train.evaluation and not settings.train.evaluation.examples:
        notes.append("evaluation is not in the hours: train.evaluation.examples is not set")
    made = Plan(topology=found, slices=settings.mesh.slices, phases=phases, notes=tuple(notes))
    wanted = not made.fits if settings.suggest is None else settings.suggest
    if not wanted:
        return made
    sections = settings.train.phases
    largest = max(
        range(len(sections)),
        key=lambda at: sections[at].batch_size * sections[at].seq_length ** 2,
    )
    request = request.model_copy(update={"phase": largest})
    saves_nothing = look._replace(compiler=dataclasses.replace(compiler, save_to=None))
    return made.suggested(find_fitting(request, found, compiled=saves_nothing.at))


class _Look(NamedTuple):
    """How a step of a topology is looked at: `exact` compiles it however deep it is."""

    topology: TpuTopology
    compiler: Compiler
    exact: bool

    def at(self, request: CompileRequest, title: str) -> CompiledStep:
        """Returns what is known of a step then."""
        if self.exact:
            return compiled_step(request, title=title, compiler=self.compiler)
        return quick_step(request, self.topology, title=title, compiler=self.compiler)


def _phase(settings: PlanSettings, index: int, look: _Look) -> PhasePlan:
    phase, evaluation = settings.train.phases[index], settings.train.evaluation
    rows = (evaluation and evaluation.batch_size) or phase.batch_size
    examples = (evaluation and evaluation.examples) or 0

    def step(kind: StepKind) -> CompiledStep:
        request = settings.request(look.topology.name)
        request = request.model_copy(update={"kind": kind, "phase": index})
        return look.at(request, _title(index, kind, phase.seq_length, look.topology.name))

    train = step("train")
    # It takes no more memory and a thousandth of the time: not worth two programs more.
    skipped = train.extrapolated
    return PhasePlan(
        steps=phase.steps,
        seq_length=phase.seq_length,
        batch_size=phase.batch_size,
        train=train,
        evaluation=step("evaluation") if evaluation and not skipped else None,
        evaluations=phase.steps // evaluation.every if evaluation else 0,
        evaluation_batches=math.ceil(examples / rows),
        evaluation_rows=rows,
    )


def save_cpu_executables(settings: PlanSettings, topology: str, *, compiler: Compiler) -> None:
    """Saves every step of a run for CPU devices: a run that is tried on them, or tested.

    Args:
        settings: of the run.
        topology: ``cpu:8``.
        compiler: says where to.

    Raises:
        UserError: mesh, batch and model do not fit together, or it cannot be written.
        RunStopped: the compiler failed.
    """
    request = settings.request(topology)
    kinds: list[StepKind] = ["train", "evaluation"] if settings.train.evaluation else ["train"]
    for index, phase in enumerate(settings.train.phases):
        for kind in kinds:
            save_for_cpu(
                request.model_copy(update={"kind": kind, "phase": index}),
                title=_title(index, kind, phase.seq_length, topology),
                compiler=compiler,
            )


def _title(phase: int, kind: StepKind, length: int, topology: str) -> str:
    return f"phase {phase} {kind} step, {length} tokens, for {topology}"
