"""From a request to a plan: which steps are compiled, how, and what is looked for besides."""

import dataclasses
import math
from typing import Final

from bert_jax.model.config import resolve_architecture
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.step import CompiledStep, quick_refusal
from bert_jax.planning.compiler import Compiler
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.request import CompileRequest, StepKind
from bert_jax.planning.suggest import find_fitting

# Of `base` on v5e:4x4 against its exact program 2.5%; for others see docs/planning.md.
_CYCLES_OFF: Final = "10%"
QUICK_NOTE: Final = (
    f"quick: memory is the compiler's, cycles are estimated to about {_CYCLES_OFF}; "
    f"--exact compiles the code too, in minutes"
)
SHALLOW: Final = 2  # layers of a program that is compiled exactly as fast


def make_plan(
    run: CompileRequest, *, exact: bool = False, suggest: bool | None = None, compiler: Compiler
) -> Plan:
    """Compiles every step of a run for a topology, in any spelling.

    Args:
        run: any step of the run.
        exact: generate code for all programs, else for shallow ones.
        suggest: look for settings that fit; None: where the run does not.
        compiler: how to compile.

    Raises:
        UserError: no such topology, no libtpu, or mesh, batch and model do not fit it.
        RunStopped: the compiler failed.
    """
    topology, why_exact = parse_topology(run.topology), quick_refusal()
    architecture = resolve_architecture(run.model, vocab_size=run.vocab_size)
    deep = architecture.num_hidden_layers > SHALLOW  # to compile it exactly takes minutes
    quick = deep and not exact and why_exact is None
    run = run.model_copy(update={"topology": topology.name, "quick": quick})
    phases = _phases(run, compiler)
    notes = [QUICK_NOTE] if any(phase.train.quick for phase in phases) else []
    if why_exact and deep and not exact:
        notes.append(why_exact)
    if run.train.evaluation and not run.train.evaluation.examples:
        notes.append("evaluation is not in the hours: train.evaluation.examples is not set")
    plan = Plan(topology=topology, slices=run.mesh.slices, phases=phases, notes=tuple(notes))
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
    evaluation = run.train.evaluation
    found = []
    for at, section in enumerate(sections):
        rows = run.train.evaluation_rows(section)
        times = section.steps // evaluation.every if evaluation else 0
        examples = (evaluation and evaluation.examples) or 0
        found.append(
            PhasePlan(
                steps=section.steps,
                seq_length=section.seq_length,
                batch_size=section.batch_size,
                train=trains[at],
                evaluation=evaluations.get(at),
                evaluation_batches=times * math.ceil(examples / rows),
                evaluation_rows=rows,
            )
        )
    return found


def _is_compiled(run: CompileRequest, phase: int, train: CompiledStep) -> bool:
    """Whether a phase's evaluation is compiled; a quick plan leaves out what surely fits."""
    if run.train.evaluation is None or not train.quick:
        return run.train.evaluation is not None
    return train.memory is not None and not _surely_fits(run, phase, train)


def _surely_fits(run: CompileRequest, phase: int, train: CompiledStep) -> bool:
    """Returns whether a phase's evaluation fits, as far as its train step tells.

    A batch of evaluation has by default the rows of a microbatch. Forward a step keeps no more of
    them than training does forward and backward. So beside the trained state and the parameters'
    copy that evaluations have, the train step's temporaries are the most that an evaluation needs.
    """
    section = run.train.phases[phase]
    if train.memory is None or run.train.evaluation_rows(section) > section.microbatch:
        return False
    available = parse_topology(run.topology).accelerator.device_hbm_bytes
    return train.memory.peak + train.copy_bytes <= available


def _with_suggestions(plan: Plan, run: CompileRequest, compiler: Compiler) -> Plan:
    """Returns a plan with settings under which the largest phase fits."""
    if not plan.fits:  # now: the search takes many times as long
        line = f"{run.topology}: does not fit: {plan.memory_missing()}"
        compiler.narrator.say(f"{line}; looking for settings that fit")
    sizes = [phase.batch_size * phase.seq_length**2 for phase in run.train.phases]
    run = run.model_copy(update={"phase": sizes.index(max(sizes))})
    changed: tuple[str, ...] = ()
    evaluation = run.train.evaluation
    unfitting = any(phase.evaluation and not phase.evaluation.memory for phase in plan.phases)
    if unfitting and evaluation and evaluation.batch_size is not None:
        # Evaluations have the rows of a microbatch then.
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
