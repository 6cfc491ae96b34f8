"""From a configuration's sections to plans, one for each topology."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from bert_jax.model.config import ModelSection, resolve_architecture
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.step import CompiledStep, quick_refusal
from bert_jax.planning.compiler import Compiler, compiled_step, compiled_together, kept_step
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.evaluation import surely_fits
from bert_jax.planning.request import CompileRequest, StepKind
from bert_jax.planning.suggest import find_fitting
from bert_jax.planning.verdict import memory_missing
from bert_jax.train.sections import TrainSection

# Of `base` on v5e:4x4 against its exact program 0.2%; what others may be, docs/planning.md.
_CYCLES_OFF: Final = "10%"
QUICK_NOTE: Final = (
    f"quick: memory is the compiler's, cycles are estimated to about {_CYCLES_OFF}; "
    f"--exact compiles the code too, in minutes"
)
SHALLOW: Final = 2  # layers of a program that is compiled exactly as fast


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What decides the programs of a run, and how exactly to look at them."""

    vocab_size: int  # of the tokenizer
    model: ModelSection
    objective: ObjectiveSection
    mesh: MeshSection
    optimizer: OptimizerSection
    train: TrainSection
    exact: bool = False  # generate code for all programs, else for shallow ones
    suggest: bool | None = None  # look for settings that fit; None: where the run does not

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

    def step(self, topology: str, phase: int, kind: StepKind) -> WantedStep:
        """Returns a step of the run."""
        request = self.request(topology).model_copy(update={"kind": kind, "phase": phase})
        return WantedStep(request, f"the {kind} step of phase {phase} for {topology}")


class WantedStep(NamedTuple):
    """What to compile, and its title for the progress line."""

    request: CompileRequest
    title: str


def make_plan(settings: PlanSettings, topology: str, *, compiler: Compiler) -> Plan:
    """Compiles every step of a run for a topology, in any spelling.

    Raises:
        UserError: no such topology, no libtpu, or mesh, batch and model do not fit it.
        RunStopped: the compiler failed.
    """
    found = parse_topology(topology)
    request = settings.request(found.name)
    why_exact = quick_refusal()
    look = _Look(found.name, compiler, exact=settings.exact or why_exact is not None)
    phases = _phases(settings, look)
    notes = [QUICK_NOTE] if any(phase.train.quick for phase in phases) else []
    if why_exact and not settings.exact and _is_deep(request):
        notes.append(why_exact)
    if settings.train.evaluation and not settings.train.evaluation.examples:
        notes.append("evaluation is not in the hours: train.evaluation.examples is not set")
    made = Plan(topology=found, slices=settings.mesh.slices, phases=phases, notes=tuple(notes))
    wanted = not made.fits if settings.suggest is None else settings.suggest
    if not wanted:
        return made
    if not made.fits:  # now: the search takes many times as long
        line = f"{found.name}: does not fit: {memory_missing(made)}"
        compiler.console.print(f"{line}; looking for settings that fit", soft_wrap=True)
    sections = settings.train.phases
    largest = max(
        range(len(sections)),
        key=lambda at: sections[at].batch_size * sections[at].seq_length ** 2,
    )
    request = request.model_copy(update={"phase": largest})
    changed: tuple[str, ...] = ()
    if any(phase.evaluation and not phase.evaluation.memory for phase in phases):
        request, changed = _of_small_evaluations(request)
    fitting = find_fitting(request, found, compiled=look.of_phase)
    return made.suggested(
        [each._replace(overrides=(*changed, *each.overrides)) for each in fitting]
    )


class _Look(NamedTuple):
    """How steps of a topology are looked at: `exact` generates code however deep they are."""

    topology: str
    compiler: Compiler
    exact: bool

    def at(self, request: CompileRequest, title: str) -> CompiledStep:
        """Returns what is known of one step then."""
        return self.steps([WantedStep(request, title)])[0]

    def of_phase(self, request: CompileRequest, title: str) -> CompiledStep:
        """Returns the same of a train step; if it fits and its evaluation does not, of that."""
        train = self.at(request, title)
        evaluates = request.train.evaluation is not None
        if not evaluates or train.memory is None or surely_fits(request, train):
            return train
        asked = request.model_copy(update={"kind": "evaluation"})
        evaluation = self.at(asked, f"{title}, evaluation")
        return evaluation if evaluation.memory is None else train

    def steps(self, wanted: Sequence[WantedStep]) -> list[CompiledStep]:
        """Returns the same of several: the quick ones are compiled beside one another."""
        found = [self._known(each) for each in wanted]
        missing = [each for each, step in zip(wanted, found, strict=True) if step is None]
        if not missing:
            return [step for step in found if step is not None]
        requests = [_quick(each.request) for each in missing]
        title = missing[0].title
        if len(missing) > 1:
            phases = ", ".join(str(each.phase) for each in requests)
            title = f"the {requests[0].kind} steps of phases {phases} for {self.topology}"
        compiled = iter(compiled_together(requests, title=title, compiler=self.compiler))
        return [step or next(compiled) for step in found]

    def _known(self, wanted: WantedStep) -> CompiledStep | None:
        """Returns a step that is compiled exactly, or was before, or quickly before."""
        request, title = wanted
        if self.exact or not _is_deep(request):
            return compiled_step(request, title=title, compiler=self.compiler)
        kept = kept_step(request, title=title, compiler=self.compiler)
        return kept or kept_step(_quick(request), title=title, compiler=self.compiler)


def _is_deep(request: CompileRequest) -> bool:
    """Whether compiling a step exactly takes minutes."""
    architecture = resolve_architecture(request.model, vocab_size=request.vocab_size)
    return architecture.num_hidden_layers > SHALLOW


def _quick(request: CompileRequest) -> CompileRequest:
    return request.model_copy(update={"quick": True})


def _phases(settings: PlanSettings, look: _Look) -> list[PhasePlan]:
    indices = range(len(settings.train.phases))
    trains = look.steps([settings.step(look.topology, at, "train") for at in indices])
    unsure = [at for at in indices if _is_to_compile(settings, look.topology, at, trains[at])]
    compiled = look.steps([settings.step(look.topology, at, "evaluation") for at in unsure])
    evaluations = dict(zip(unsure, compiled, strict=True))
    return [_phase(settings, at, trains[at], evaluations.get(at)) for at in indices]


def _is_to_compile(settings: PlanSettings, topology: str, index: int, train: CompiledStep) -> bool:
    """Returns whether a phase's evaluation is compiled.

    It takes a thousandth of the time: a quick plan does without, where it is sure to fit.
    """
    if settings.train.evaluation is None or not train.quick:
        return settings.train.evaluation is not None
    request, _ = settings.step(topology, index, "train")
    return train.memory is not None and not surely_fits(request, train)


def _phase(
    settings: PlanSettings, index: int, train: CompiledStep, evaluation: CompiledStep | None
) -> PhasePlan:
    phase, section = settings.train.phases[index], settings.train.evaluation
    rows = settings.train.evaluation_rows(phase)
    examples = (section and section.examples) or 0
    return PhasePlan(
        steps=phase.steps,
        seq_length=phase.seq_length,
        batch_size=phase.batch_size,
        train=train,
        evaluation=evaluation,
        evaluations=phase.steps // section.every if section else 0,
        evaluation_batches=math.ceil(examples / rows),
        evaluation_rows=rows,
    )


def _of_small_evaluations(request: CompileRequest) -> tuple[CompileRequest, tuple[str, ...]]:
    """Returns a request whose evaluations have the rows of a microbatch, and what changes it so."""
    section = request.train.evaluation
    if section is None or section.batch_size is None:
        return request, ()
    evaluation = section.model_copy(update={"batch_size": None})
    train = request.train.model_copy(update={"evaluation": evaluation})
    changed = ("train.evaluation.batch_size=null",)
    return request.model_copy(update={"train": train}), changed
