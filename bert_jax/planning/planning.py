"""From a configuration's sections to plans, one for each topology."""

from __future__ import annotations

import dataclasses
import math

from bert_jax.model.config import ModelSection, resolve_architecture
from bert_jax.model.execution import default_unroll
from bert_jax.objectives.section import ObjectiveSection
from bert_jax.optim.sections import OptimizerSection
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compiler import Compiler, compiled_step, save_for_cpu
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.request import CompileRequest, StepKind
from bert_jax.planning.suggest import find_fitting
from bert_jax.train.sections import TrainSection

# Of a scanned encoder's, base at 512 tokens on v5e:4x4, see docs/planning.md.
UNROLLED_CYCLES, UNROLLED_TEMPORARIES = 0.7, 0.55


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What decides the programs of a run, and how exactly to look at them.

    Attributes:
        vocab_size: of the tokenizer.
        quick: scan the layers where the run would unroll them: compiles in a tenth of the time.
        suggest: look for settings that fit; None: where the run does not.
    """

    vocab_size: int
    model: ModelSection
    objective: ObjectiveSection
    mesh: MeshSection
    optimizer: OptimizerSection
    train: TrainSection
    quick: bool = False
    suggest: bool | None = None

    def request(self, topology: str, *, model: ModelSection) -> CompileRequest:
        """Returns the request for the train step of the first phase."""
        return CompileRequest(
            topology=topology,
            kind="train",
            phase=0,
            vocab_size=self.vocab_size,
            model=model,
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
    model, note = _model(settings)
    request = settings.request(found.name, model=model)
    phases = []
    for index, phase in enumerate(settings.train.phases):

        def step(kind: StepKind, index: int = index, length: int = phase.seq_length):
            return compiled_step(
                request.model_copy(update={"kind": kind, "phase": index}),
                title=_title(index, kind, length, found.name),
                compiler=compiler,
            )

        evaluation = settings.train.evaluation
        rows = (evaluation and evaluation.batch_size) or phase.batch_size
        examples = (evaluation and evaluation.examples) or 0
        phases.append(
            PhasePlan(
                steps=phase.steps,
                seq_length=phase.seq_length,
                batch_size=phase.batch_size,
                train=step("train"),
                evaluation=step("evaluation") if evaluation else None,
                evaluations=phase.steps // evaluation.every if evaluation else 0,
                evaluation_batches=math.ceil(examples / rows),
            )
        )
    notes = [note] if note else []
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
    only_look = dataclasses.replace(compiler, save_to=None)
    return made.suggested(find_fitting(request, found, compiler=only_look))


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
    request = settings.request(topology, model=settings.model)
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


def _model(settings: PlanSettings) -> tuple[ModelSection, str]:
    """Returns the model as it is to be compiled, and a note where the run's own differs."""
    section = settings.model
    depth = resolve_architecture(section, vocab_size=settings.vocab_size).num_hidden_layers
    unroll = section.execution.unroll or default_unroll(depth, on_tpu=True)
    if not settings.quick or min(unroll, depth) == 1:
        return section, ""
    scanned = section.execution.model_copy(update={"unroll": 1})
    return section.model_copy(update={"execution": scanned}), (
        f"quick: layers scanned, where the run unrolls {min(unroll, depth)}; unrolled takes about "
        f"{UNROLLED_CYCLES:.0%} of the cycles and {UNROLLED_TEMPORARIES:.0%} of the temporaries"
    )
